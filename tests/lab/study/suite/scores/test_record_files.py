"""Files of records: results.jsonl is read back as written, and a corrupted line is refused with its number."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.scores.record_files import read_records, write_records

GOOD: dict[str, Any] = {
    "task": "copy",
    "split": "long",
    "row": "tape",
    "kind": "encoding",
    "seed": 1,
    "learning_rate": 0.001,
    "score": 0.5,
    "reason": None,
    "asked": 4,
    "curve": [[8, 2, 2], [16, 0, 2]],
}


def test_records_are_read_back_sorted_by_model(tmp_path: Path) -> None:
    """A missing score, and a baseline without seed and rate, are read back as written."""
    baseline = GOOD | {"kind": "baseline", "row": "oracle", "seed": None, "learning_rate": None, "score": 1}
    second_seed = GOOD | {"seed": 2}
    tenth_seed = GOOD | {"seed": 10}
    without_score = GOOD | {"row": "xpos", "score": None, "reason": "16 positions are more than 8", "asked": 0, "curve": []}
    expected = [baseline, second_seed, tenth_seed, without_score]
    records = [Record.model_validate_json(json.dumps(content)) for content in expected]
    path = tmp_path / "results.jsonl"

    write_records(path, [records[2], records[1], records[3], records[0]])

    assert [json.loads(line) for line in path.read_text().splitlines()] == expected
    assert read_records(path) == records


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"score": 1.5}, r"score: must be .*, got 1\.5"),
        ({"score": float("nan")}, "score"),
        ({"score": "0.5"}, "score"),
        ({"score": None}, "a score or a reason; here they are None and None"),
        ({"reason": "too long"}, "a score or a reason; here they are 0.5 and too long"),
        ({"seed": None}, "an encoding has a seed; this is one of tape"),
        ({"seed": True}, "seed"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"kind": "oracle"}, "kind.*'oracle'"),
        ({"curve": [[8, 2]]}, "curve.0.2: Field required"),
        ({"rate": 1}, "rate: Extra inputs are not permitted"),
    ],
)
def test_corrupted_record_is_refused(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    path = tmp_path / "results.jsonl"
    corrupted = GOOD | {"seed": 2} | change
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(corrupted)}\n")

    with pytest.raises(ValueError, match=rf"results.jsonl, line 2 is corrupted \(.*{fault}"):
        read_records(path)


@pytest.mark.parametrize("line", ["", "{", '{"task": "copy"', "[]", "\xff", "[" * 100_000])
def test_line_that_is_no_record_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(f"{json.dumps(GOOD)}\n{line}\n".encode("latin-1"))

    with pytest.raises(ValueError, match="results.jsonl, line 2 is corrupted"):
        read_records(path)


def test_repeated_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    other_score = GOOD | {"score": 0.25}
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(other_score)}\n")

    with pytest.raises(ValueError, match="line 2 repeats copy, long, tape, seed 1"):
        read_records(path)
