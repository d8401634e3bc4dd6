"""Drops documents containing parts of an evaluation."""

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
    """Drops documents sharing a run of `words` words with a text in the evaluation files.

    GPT-3 (Brown et al., arXiv 2005.14165, appendix C) uses 13-grams, ignoring case, punctuation and white space. GPT-3's filter
    drops a window around the run and ignores runs that are frequent in the source. This one drops the whole document, and all
    runs count.

    Attributes:
        files: Lines of JSON, compressed or not (every string in a line is a text, also in nested values), text files (one text
            each), or folders of them. Texts with fewer words are ignored.
        words: Words in a run.
    """

    files: Annotated[tuple[str, ...], Field(min_length=1)]
    words: Annotated[int, Field(ge=5)] = 13

    @property
    def paths(self) -> tuple[str, ...]:
        return self.files

    def check(self) -> None:
        self.apply("")

    @cached_property
    def _runs(self) -> dict[str, np.ndarray]:
        """File path -> hashes of all its runs, sorted, uint64."""
        runs = {}
        for name in self.files:
            for path in files_of(name):
                runs[str(path)] = self._runs_of(path)
        return runs

    def _runs_of(self, path: Path) -> np.ndarray:
        hashes = [hash_runs(text, self.words) for text in _texts(path) if len(WORD.findall(text)) >= self.words]
        if not hashes:
            raise UserError(f"{path} has no text of {self.words} words or more: give other files or fewer words")
        return np.unique(np.concatenate(hashes))

    def apply(self, text: str) -> str:
        hashes = hash_runs(text, self.words)
        for name, runs in self._runs.items():
            if contains(runs, hashes):
                raise DocumentDropped(f"shares {self.words} words with {name}")
        return text


def _texts(path: Path) -> Iterator[str]:
    """Yield the texts of an evaluation file. Raises UserError if one cannot be read."""
    if not is_json_lines(path.name):
        with content_errors(f"{path} is not UTF-8 text", "give text, or lines of JSON as .jsonl"):
            yield path.read_text(encoding="utf-8")
        return
    counts = RecordCounts()
    for record in read_records(str(path), MAX_RECORD_BYTES, counts):
        yield from _strings(record.value)
    if counts.skipped:
        raise UserError(f"{counts.bad_examples or counts.first_too_long}: correct the file")


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
