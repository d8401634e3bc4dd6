"""Documents that hold a part of an evaluation."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from megatape.data.cleaning.rule import DocumentDropped, TextRule, files_of
from megatape.data.cleaning.word_runs import WORD, contains, hash_runs
from megatape.data.counts import RecordCounts
from megatape.data.io.records import is_json_lines, read_records
from megatape.errors import UserError, content_errors

MAX_RECORD_BYTES = 2**26


@dataclass(frozen=True)
class Decontaminate(TextRule):
    """A document shares no run of `words` words with a text of the evaluation files.

    These are the 13-grams of GPT-3 (Brown et al., arXiv 2005.14165, appendix C), without regard to case, punctuation and white
    space.

    files: .jsonl, compressed or not (each string of a line is a text, in nested values too), text files (each is one text), or
    folders of them. Texts with fewer words are not looked for. Unlike there the whole document goes, not a window around the
    run, and runs that are frequent in the source count as well.
    """

    files: Annotated[tuple[str, ...], Field(min_length=1)]
    words: Annotated[int, Field(ge=5)] = 13

    @property
    def paths(self) -> tuple[str, ...]:
        return self.files

    def check(self) -> None:
        self.apply("")

    @cached_property
    def _runs(self) -> list[tuple[str, np.ndarray]]:
        """Hashes of all runs in each file, sorted, uint64."""
        runs = []
        for path in (path for name in self.files for path in files_of(name)):
            hashes = [hash_runs(text, self.words) for text in _texts(path) if len(WORD.findall(text)) >= self.words]
            if not hashes:
                raise UserError(f"{path} has no text of {self.words} words or more: give other files or fewer words")
            runs.append((str(path), np.unique(np.concatenate(hashes))))
        return runs

    def apply(self, text: str) -> str:
        hashes = hash_runs(text, self.words)
        for name, runs in self._runs:
            if contains(runs, hashes):
                raise DocumentDropped(f"shares {self.words} words with {name}")
        return text


def _texts(path: Path) -> Iterator[str]:
    """The texts of an evaluation file. Raises UserError if one cannot be read."""
    if not is_json_lines(path.name):
        with content_errors(f"{path} is no text in UTF-8", "give text, or lines of JSON as .jsonl"):
            yield path.read_text(encoding="utf-8")
        return
    counts = RecordCounts()
    for _, record in read_records(str(path), MAX_RECORD_BYTES, counts):
        yield from _strings(record)
    if counts.skipped:
        raise UserError(f"{counts.bad_examples or counts.first_too_long}: correct the file")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
