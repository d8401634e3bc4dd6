"""Questions of SCROLLS' sets: the layout of files, and errors in them."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.lab.tasks.scrolls.questions import read_set
from tests.helpers.lab.scrolls import REFERENCES, lines, write_set


class ReadQuestion(NamedTuple):
    """Question with the number of characters of its prompt."""

    id: str
    prompt_size: int
    references: list[str]


EXPECTED = [
    ReadQuestion("q0", 16, REFERENCES[0]),
    ReadQuestion("q1", 16, REFERENCES[1]),
    ReadQuestion("q2", 16, REFERENCES[2]),
]


def read(data: Path, split: str = "validation", **options: Any) -> list[ReadQuestion]:
    questions = read_set(data, "qasper", split, lambda text: [len(text)], **options)
    return [ReadQuestion(question.id, question.prompt[0], question.references) for question in questions]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The example of the official scorer, with an empty line at its end."""
    path = write_set(tmp_path / "folder", "qasper", lines())
    path.write_text(path.read_text() + "\n")
    return tmp_path / "folder"


def test_references_are_grouped_by_question(data: Path) -> None:
    assert read(data) == EXPECTED


def test_first_questions_are_read(data: Path) -> None:
    assert read(data, max_questions=2) == EXPECTED[:2]


def test_missing_split_is_refused(data: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected qasper/train.jsonl in it: unpack SCROLLS' qasper.zip there"):
        read(data, "train")


def test_folder_of_one_set_is_refused(data: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"folder/qasper: expected qasper/validation.jsonl in it"):
        read(data / "qasper")


def test_missing_folder_is_refused(tmp_path: Path) -> None:
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
def test_bad_sets_are_refused(rows: list[Any], message: str, tmp_path: Path) -> None:
    write_set(tmp_path, "qasper", rows)

    with pytest.raises(ValueError) as error:
        read(tmp_path)
    assert message in str(error.value)


def test_published_test_split_has_no_references(tmp_path: Path) -> None:
    write_set(tmp_path, "qasper", [{"id": "a", "input": "b", "output": None}], "test")

    with pytest.raises(ValueError, match="the published test split has none, use the validation split"):
        read(tmp_path, "test")


def test_malformed_line_is_refused(tmp_path: Path) -> None:
    path = write_set(tmp_path, "qasper", [], "test")
    path.write_text("{")

    with pytest.raises(ValueError, match=r"test.jsonl:1: malformed JSON"):
        read(tmp_path, "test")
