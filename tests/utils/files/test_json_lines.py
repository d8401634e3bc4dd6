"""Lines of JSON: the longest one, and truncated ones."""

import json
from pathlib import Path

import pytest

from megatape.errors import UserError
from megatape.utils.files.json_lines import MAX_LINE_BYTES, append_lines, read_lines


def test_a_line_that_is_too_long_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    frame = len(json.dumps({"text": ""})) + 1
    longest = {"text": "x" * (MAX_LINE_BYTES - 1 - frame)}
    append_lines(path, [longest])
    with pytest.raises(UserError, match="lines.jsonl: a line of 1,048,576 bytes could not be read again"):
        append_lines(path, [{"text": "short"}, {"text": longest["text"] + "x"}])
    assert [entry for _, entry in read_lines(path)] == [longest]


@pytest.mark.parametrize("length", range(MAX_LINE_BYTES - 2, MAX_LINE_BYTES + 3))
def test_the_longest_line(tmp_path: Path, length: int) -> None:
    """No part of an overlong line is taken for a line."""
    path = tmp_path / "events.jsonl"
    line = json.dumps({"event": "failed", "detail": ""})
    line = line.replace('""', f'"{"x" * (length - len(line) - 1)}"') + "\n"
    assert len(line) == length
    path.write_text(f'{line}{{"event": "a"}}\n{" " * (MAX_LINE_BYTES + 5)}{{"event": "part"}}\n{{"event": "b"}}\n')
    events = [event["event"] for _, event in read_lines(path)]
    assert events == [*(["failed"] if length < MAX_LINE_BYTES else []), "a", "b"]


@pytest.mark.parametrize("before", [None, b"", b'{"number": 0}\n', b'{"number": 0}\n{"number": 7, "te'])
def test_append(before: bytes | None, tmp_path: Path) -> None:
    """A truncated last line does not spoil the following ones."""
    path = tmp_path / "lines.jsonl"
    if before is not None:
        path.write_bytes(before)
    append_lines(path, [{"number": 1}, {"number": 2, "text": "\u20ac\n"}])
    append_lines(path, [{"number": 3}])
    assert [entry["number"] for _, entry in read_lines(path)] == [*([0] if before else []), 1, 2, 3]
    assert path.read_bytes().endswith(b'{"number": 3}\n')
