"""Questions of SCROLLS' sets: the layout of files, and errors in them."""

from pathlib import Path
from typing import Any

import pytest

from megatape.lab.tasks.scrolls.questions import read_set
from tests.helpers.lab.scrolls import REFERENCES, lines, write_set


def read(data: Path, split: str = "validation", **options: Any) -> list[tuple[str, list[int], list[str]]]:
    found = read_set(data, "qasper", split, lambda text: [len(text)], **options)
    return [(each.id, list(each.prompt), each.references) for each in found]


def test_layout(tmp_path: Path) -> None:
    """References are grouped."""
    expected = [("q0", [16], REFERENCES[0]), ("q1", [16], REFERENCES[1]), ("q2", [16], REFERENCES[2])]
    path = write_set(tmp_path / "folder", "qasper", lines())
    path.write_text(path.read_text() + "\n")
    assert read(tmp_path / "folder") == expected
    assert read(tmp_path / "folder", max_questions=2) == expected[:2]
    with pytest.raises(FileNotFoundError, match=r"expected qasper/train.jsonl in it: unpack SCROLLS' qasper.zip there"):
        read(tmp_path / "folder", "train")
    with pytest.raises(FileNotFoundError, match=r"folder/qasper: expected qasper/validation.jsonl in it"):
        read(tmp_path / "folder" / "qasper")
    with pytest.raises(FileNotFoundError, match=r"nowhere: expected .* in it"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "validation.jsonl is empty"),
        ([{"id": "a", "input": "b", "output": None}], "1 id (a) without a reference: `output` must have its text"),
        ([{"id": "a", "input": "b"}] * 2, "1 id (a) without a reference"),
        (
            [{"id": "a", "input": "b", "output": "c"}, {"id": "a", "input": "d", "output": "c"}],
            "jsonl:2: id 'a' was given another",
        ),
        ([{"id": 1, "input": "b", "output": "c"}], "jsonl:1: 'id' is 1, not a string"),
        ([{"pid": "a", "input": "b", "output": "c"}], "jsonl:1: 'id' is missing; the record has 'pid', 'input', 'output'"),
        ([{"id": "a", "input": " ", "output": "c"}], "jsonl:1: `input` is empty"),
        ([["a"]], "jsonl:1: ['a'] is not an object"),
    ],
)
def test_bad_sets(rows: list[Any], message: str, tmp_path: Path) -> None:
    write_set(tmp_path, "qasper", rows)
    with pytest.raises(ValueError) as raised:
        read(tmp_path)
    assert message in str(raised.value)


def test_the_published_test_split_has_no_references(tmp_path: Path) -> None:
    write_set(tmp_path, "qasper", [{"id": "a", "input": "b", "output": None}], "test")
    with pytest.raises(ValueError, match="the published test split has none, use the validation split"):
        read(tmp_path, "test")
    (tmp_path / "qasper" / "test.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"test.jsonl:1: malformed JSON"):
        read(tmp_path, "test")
