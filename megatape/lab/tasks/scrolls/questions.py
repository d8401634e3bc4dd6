"""Reads a set's questions from NAME/SPLIT.jsonl, the layout of SCROLLS' unpacked zip files.

A line has `id`, `input` and `output`. A question with several references has a line for each.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import orjson

from megatape.data.finetuning.fields import text_of
from megatape.errors import MissingPath, UserError, flag, path_errors
from megatape.utils.text.units import plural

# Number of ids shown in an error.
NUM_SHOWN = 3


@dataclass(frozen=True)
class Question:
    """A question, or a text to summarize.

    Attributes:
        id: Id within its set.
        prompt: Prompt ids, in an array because a set has millions of them.
        references: Right answers.
    """

    id: str
    prompt: "array[int]"
    references: list[str] = field(default_factory=list)


@path_errors()
def read_set(
    data: Path, name: str, split: str, encode: Callable[[str], list[int]], max_questions: int | None = None
) -> list[Question]:
    """Read a split's questions, ordered by their first lines.

    Args:
        data: Folder of the sets.
        name: Set name.
        split: Split name.
        encode: Converts an input to prompt ids.
        max_questions: Maximum number of questions to read, None for all.

    Raises:
        MissingPath: The file is missing.
        UserError: A line is malformed, an id has two inputs, a question has no reference, or the set is empty.
    """
    questions: dict[str, Question] = {}
    # Id -> first location, and hash of the input there.
    inputs: dict[str, tuple[str, bytes]] = {}
    without_reference: list[str] = []
    path = data / name / f"{split}.jsonl"
    if not path.is_file():
        raise MissingPath(f"{flag('scrolls')} {data}: expected {name}/{split}.jsonl in it: unpack SCROLLS' {name}.zip there")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            location = f"{path}:{number}"
            entry = _parse_line(location, line)
            digest = sha256(entry.input.encode()).digest()
            first_location, first_digest = inputs.setdefault(entry.id, (location, digest))
            if digest != first_digest:
                raise UserError(
                    f"{location}: id {entry.id!r} was given another input in {first_location}: give each question an id of its "
                    "own"
                )
            if entry.id not in questions:
                if max_questions is not None and len(questions) == max_questions:
                    continue
                questions[entry.id] = Question(entry.id, array("i", encode(entry.input)))
            if entry.reference is None:
                without_reference.append(entry.id)
            else:
                questions[entry.id].references.append(entry.reference)
    if not inputs:
        raise UserError(f"{path} is empty: it must have a line for each question")
    if without_reference:
        hint = ""
        if split == "test":
            hint = "; the published test split has none, use the validation split"
        ids = describe_ids(list(dict.fromkeys(without_reference)))
        raise UserError(f"{path}: {ids} without a reference: `output` must have its text{hint}")
    return list(questions.values())


def describe_ids(ids: list[str]) -> str:
    """Describe ids by their number and the first few."""
    shown = ids[:NUM_SHOWN]
    if len(ids) > NUM_SHOWN:
        shown.append("...")
    count = plural(len(ids), "id")
    return f"{count} ({', '.join(shown)})"


class _Line(NamedTuple):
    """A line of a set. `reference` is None if `output` has no text."""

    id: str
    input: str
    reference: str | None


def _parse_line(location: str, line: bytes) -> _Line:
    try:
        record = orjson.loads(line)
        if not isinstance(record, dict):
            raise UserError(f"{record!r:.40} is not an object")
        for name in ("id", "input"):
            if not text_of(record, name).strip():
                raise UserError(f"`{name}` is empty")
    except orjson.JSONDecodeError as error:
        raise UserError(f"{location}: malformed JSON ({error}): copy the file again") from None
    except ValueError as error:
        raise UserError(f"{location}: {error}") from None
    reference = None
    output = record.get("output")
    if isinstance(output, str) and output.strip():
        reference = output
    return _Line(record["id"], record["input"], reference)
