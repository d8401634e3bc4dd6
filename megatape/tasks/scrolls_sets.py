"""The data sets of SCROLLS (arXiv 2201.03533) in their published layout, and sets of one's own in the same.

A set NAME is NAME/SPLIT.jsonl in a folder, or the same in NAME.zip. A line has `id`, `input` and `output`; a question with
several references has a line for each.
"""

import re
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile, ZipFile

import orjson

from megatape.data.finetuning.format import text_of
from megatape.errors import MissingPath, UserError, path_errors
from megatape.tasks.text_scores import METRICS, Metric

NUM_SHOWN = 3  # ids in an error


@dataclass(frozen=True)
class TextSet:
    """A set by its name, and what its answers are scored by: `rouge` for summaries, anything else for answers to questions."""

    name: str
    metric: Metric

    def __str__(self) -> str:
        """As `parse_set` reads it."""
        return self.name if self.name in SETS else f"{self.name}={self.metric}"


SETS: dict[str, TextSet] = {
    each.name: each
    for each in (
        TextSet("qasper", "f1"),
        TextSet("contract_nli", "exact_match"),
        TextSet("narrative_qa", "f1"),
        TextSet("quality", "exact_match"),
        TextSet("qmsum", "rouge"),
        TextSet("summ_screen_fd", "rouge"),
        TextSet("gov_report", "rouge"),
    )
}


@dataclass(frozen=True)
class Question:
    """A question or a text to summarize. prompt: its tokens, in an array because a set has millions of them."""

    id: str
    prompt: "array[int]"
    references: list[str] = field(default_factory=list)


def parse_set(text: str) -> TextSet:
    """A set of SCROLLS by its name, or any other as NAME=METRIC. Raises UserError."""
    name, _, metric = text.partition("=")
    if metric in METRICS and name not in SETS and re.fullmatch(r"\w[\w.-]*", name):
        return TextSet(name, metric)
    if text not in SETS:
        raise UserError(
            f"{text!r} is no set: give one of {', '.join(SETS)}, or a set of your own with its metric, such as "
            f"my_set=exact_match (of {', '.join(METRICS)})"
        )
    return SETS[text]


@path_errors()
def read_set(
    data: Path, name: str, split: str, encode: Callable[[str], list[int]], max_questions: int | None = None
) -> list[Question]:
    """The questions of a split in the order of their first lines. encode: an input to its prompt.

    Raises MissingPath if `data` has not the layout, and UserError for a line that is not of a set, an id with two
    inputs, questions without reference, and an empty set.
    """
    questions: dict[str, Question] = {}
    inputs: dict[str, tuple[str, bytes]] = {}  # of each id: place and hash
    without: list[str] = []
    with _open(data, name, split) as (path, file):
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            place = f"{path}:{number}"
            record = _record(place, line)
            key, text = record["id"], record["input"]
            digest = sha256(text.encode()).digest()
            first, expected = inputs.setdefault(key, (place, digest))
            if digest != expected:
                raise UserError(f"{place}: id {key!r} was given another input in {first}: give each question an id of its own")
            if key not in questions:
                if max_questions is not None and len(questions) == max_questions:
                    continue
                questions[key] = Question(key, array("i", encode(text)))
            output = record.get("output")
            if isinstance(output, str) and output.strip():
                questions[key].references.append(output)
            else:
                without.append(key)
    if not inputs:
        raise UserError(f"{path} is empty: it must have a line for each question")
    if without:
        test = "; the published test split has none, use the validation split" if split == "test" else ""
        raise UserError(
            f"{path}: {some_ids(list(dict.fromkeys(without)))} without a reference: `output` must have its text{test}"
        )
    return list(questions.values())


@contextmanager
def _open(data: Path, name: str, split: str) -> Iterator[tuple[str, BinaryIO]]:
    """Name and lines of a split's file."""
    plain, packed = data / name / f"{split}.jsonl", data / f"{name}.zip"
    if plain.is_file():
        with plain.open("rb") as file:
            yield str(plain), file
        return
    inside: list[str] = []
    if packed.is_file():
        try:
            with ZipFile(packed) as archive:
                inside = archive.namelist()
                for member in (f"{name}/{split}.jsonl", f"{split}.jsonl"):
                    if member in inside:
                        with archive.open(member) as lines:
                            yield f"{packed}:{member}", lines  # type: ignore[misc]  # reads as a binary file does
                        return
        except BadZipFile as error:
            raise UserError(f"{packed}: corrupted ({error}): download it again") from None
    if not data.is_dir():
        raise MissingPath(f"scrolls {data}: no such folder")
    found = {
        str(data): sorted(path.name for path in data.iterdir()),
        str(plain.parent): sorted(path.name for path in plain.parent.iterdir()) if plain.parent.is_dir() else [],
        str(packed): inside,
    }
    listed = "; ".join(f"{place} holds {', '.join(names[:8])}" for place, names in found.items() if names) or "it is empty"
    raise MissingPath(
        f"scrolls {data}: expected {name}/{split}.jsonl in it, or {name}.zip with the same, as SCROLLS publishes its sets; "
        f"{listed}"
    )


def _record(place: str, line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UserError(f"{place}: malformed JSON ({error}): copy the file again") from None
    try:
        if not isinstance(record, dict):
            raise UserError(f"{record!r:.40} is not an object")
        for name in ("id", "input"):
            if not text_of(record, name).strip():
                raise UserError(f"`{name}` is empty")
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None
    return record


def some_ids(ids: list[str]) -> str:
    """How many ids, and the first of them."""
    more = ", ..." if len(ids) > NUM_SHOWN else ""
    return f"{len(ids):,} id{'s' if len(ids) > 1 else ''} ({', '.join(ids[:NUM_SHOWN])}{more})"
