"""Files with one JSON array: records with their positions, reading in small pieces, and errors."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from megatape.data.counts import RecordCounts
from megatape.data.io import json_array
from megatape.data.io.json_array import read_json
from megatape.data.io.records import Record
from megatape.errors import UserError

RECORDS: list[Any] = [{"a": "é [1, 2]"}, {"b": {"c": ["]", ",", '\\"']}}, {}, [1], "x", 12, -3.5, None, {"d": "y" * 300}]


def read(path: Path, max_bytes: int = 10_000) -> tuple[list[Record], RecordCounts]:
    """Read a file's (location, record) pairs, counting its records."""
    counts = RecordCounts()
    records = list(read_json(str(path), max_bytes, counts))
    return records, counts


@pytest.mark.parametrize("chunk", [1, 7, 64, 2**20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("prefix", ["", "\ufeff", " \n"], ids=["plain", "mark", "space"])
def test_every_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None, prefix: str
) -> None:
    """A chunk may end anywhere: within a string, a number or an escape. The first one has to reach the opening bracket."""
    if prefix:
        chunk = max(chunk, 7)
    monkeypatch.setattr(json_array, "CHUNK_CHARACTERS", chunk)
    path = tmp_path / "a.json"
    path.write_text(prefix + json.dumps(RECORDS, indent=indent) + "\n", encoding="utf-8")

    records, counts = read(path)

    assert records == [(f"{path}:record {number}", record) for number, record in enumerate(RECORDS, start=1)]
    assert counts.skipped == 0


@pytest.fixture
def compressed(tmp_path: Path) -> Path:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps(RECORDS).encode()))
    return path


def test_long_records_of_a_compressed_array_are_skipped(compressed: Path) -> None:
    records, counts = read(compressed, max_bytes=200)

    assert [record for _, record in records] == RECORDS[:-1]
    assert counts.too_long == 1
    assert counts.first_too_long == f"{compressed}:record 9"


def test_a_truncated_compressed_array_is_refused(compressed: Path) -> None:
    compressed.write_bytes(compressed.read_bytes()[:-20])

    with pytest.raises(UserError, match="a.json.gz: corrupted or truncated gzip file"):
        read(compressed)


def test_a_record_that_is_not_unicode_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"a": "\\ud800"}, {"a": 1}]')

    records, counts = read(path)

    assert [record for _, record in records] == [{"a": 1}]
    assert counts.bad_examples[0].startswith(f"{path}:record 1: malformed JSON")


@pytest.mark.parametrize("content", ["[]", " [ ] \n"])
def test_an_empty_array_has_no_records(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    assert read(path)[0] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '[{"a": 1}, {"a": ',
            r"record 2 of its JSON array is malformed or cut off, near '{\"a\":': download .* `jq -c '.\[\]'`",
        ),
        ('[{"a": 1},\n{"a" 2}]', "record 2 of its JSON array is malformed"),
        ('[{"a": 1},\n]', "record 2 of its JSON array is malformed"),
        ('[\n{"a": 1}\n] {"b": 2}', 'the text after the last record of its JSON array is malformed or cut off, near \'{"b"'),
    ],
)
def test_malformed_arrays_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        read(path)


def test_lines_of_arrays_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('["a"]\n{"b": 1}\n')
    assert read(path)[0] == [(f"{path}:1", ["a"]), (f"{path}:2", {"b": 1})]
