"""Fields of records by name and path, and errors about missing ones."""

from typing import Any

import pytest

from megatape.data.finetuning.fields import FieldMapping
from megatape.errors import RecordError, UserError

RECORD = {"question": "q", "answers": {"text": ["a", "b"], "start": [1]}, "a.b": "dotted", "kept": 1}


def test_fields_are_mapped_by_name_and_path() -> None:
    mapping = FieldMapping(["prompt=question", "answer=answers.text.1", "kept=a.b"])
    expected = RECORD | {"prompt": "q", "answer": "b", "kept": "dotted"}
    assert mapping.apply(RECORD) == expected


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("questions", "'questions' is missing; the record has 'question', 'answers', 'a.b', 'kept' (did you mean question?)"),
        ("answers.txt.0", "'txt' is missing; answers has 'text', 'start' (did you mean text?)"),
        ("answers.text.2", "'2' is missing; answers.text is a list of 2"),
        ("answers.text.-1", "'-1' is missing; answers.text is a list of 2"),
        ("question.x", "'x' is missing; question is 'q'"),
    ],
)
def test_a_missing_part_of_a_path_is_named(path: str, message: str) -> None:
    with pytest.raises(RecordError) as error:
        FieldMapping([f"answer={path}"]).apply(RECORD)
    assert str(error.value) == message


@pytest.mark.parametrize("texts", [["prompt"], ["=a"], ["a="], ["a=b", "a=c"]])
def test_malformed_mappings_are_refused(texts: list[Any]) -> None:
    with pytest.raises(UserError, match="fields '.*': give each field of the format once, such as answer=response"):
        FieldMapping(texts)
