"""`megatape generate` on a terminal that only shows ASCII."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.helpers.models.exports import Exported
from tests.helpers.processes.command import Command


class AsciiCase(NamedTuple):
    """Words of a command that continues a prompt with an umlaut, and the record of a file with the same prompt."""

    words: tuple[object, ...]
    prompts: Path
    record: dict[str, Any]


@pytest.fixture
def ascii_case(exported: Callable[..., Exported], tmp_path: Path) -> AsciiCase:
    record = {"prompt": "für", "key": "\ud800"}
    prompts = tmp_path / "in.jsonl"
    prompts.write_text(json.dumps(record))
    return AsciiCase(("generate", exported("plain").folder, "--max-new-tokens", 1), prompts, record)


class AsciiTerminal:
    """Standard output that only shows ASCII. Not a fixture, because pytest sets the standard output after the fixtures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.content = io.BytesIO()
        self.stream = io.TextIOWrapper(self.content, encoding="ascii")  # closes the content when it is deleted
        monkeypatch.setattr(sys, "stdout", self.stream)


def test_text_on_an_ascii_terminal_is_escaped(command: Command, ascii_case: AsciiCase, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = AsciiTerminal(monkeypatch)
    assert command(*ascii_case.words, "--prompt", "für")[0] == 0
    assert terminal.content.getvalue().startswith(b"f\\xfcr")


def test_json_on_an_ascii_terminal_stays_json(command: Command, ascii_case: AsciiCase, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = AsciiTerminal(monkeypatch)
    assert command(*ascii_case.words, "--prompts", ascii_case.prompts)[0] == 0
    assert json.loads(terminal.content.getvalue()).items() >= ascii_case.record.items()


def test_an_output_file_is_utf_8_on_any_terminal(
    command: Command, ascii_case: AsciiCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _terminal = AsciiTerminal(monkeypatch)
    output = tmp_path / "out.jsonl"
    assert command(*ascii_case.words, "--prompts", ascii_case.prompts, "--output", output)[0] == 0
    content = output.read_text(encoding="utf-8")
    assert "für" in content
    assert json.loads(content).items() >= ascii_case.record.items()
