"""Batch of tokenized documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from typing import Any

import numpy as np


@dataclass(frozen=True)
class DocumentBatch:
    """Documents tokenized together, as columns with one element per document.

    Attributes:
        splits: Splits.
        text_bytes: Text sizes in UTF-8.
        hashes: Text hashes, as in document tables.
        places: Places in the source.
        urls: Addresses; empty if unknown.
        inputs: Elements of `Source.inputs` containing the documents.
        scores: Scores by cleaning rules.
        ids: Token ids.
    """

    splits: list[str]
    text_bytes: list[int]
    hashes: list[int]
    places: list[str]
    urls: list[str]
    inputs: list[str]
    scores: list[Mapping[str, float]]
    ids: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_tokens(self) -> list[int]:
        """Tokens per document."""
        return [ids.size for ids in self.ids]

    def select(self, is_selected: Sequence[bool]) -> "DocumentBatch":
        """Return the documents for which `is_selected` is True."""
        columns: dict[str, Any] = {}
        for column in fields(self):
            columns[column.name] = list(compress(getattr(self, column.name), is_selected))
        return DocumentBatch(**columns)
