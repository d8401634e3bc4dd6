"""Text in a terminal."""

import io
import json
import sys

import pytest

from megatape.commands.cli.terminal import visible_json


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stdout", "shown"), [(Terminal, '{"a": "é\\u009b\\u007f"}'), (io.StringIO, '{"a": "é\x9b\x7f"}')])
def test_lines_of_json_in_a_terminal(monkeypatch: pytest.MonkeyPatch, stdout: type[io.StringIO], shown: str) -> None:
    """Lines of JSON stay valid and keep their values."""
    line = json.dumps({"a": "é\x9b\x7f"}, ensure_ascii=False)
    monkeypatch.setattr(sys, "stdout", stdout())
    assert visible_json(line) == shown
    assert json.loads(visible_json(line)) == json.loads(line)
