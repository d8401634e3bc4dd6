"""Batch of tokenized documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from typing import Any

import numpy as np


@dataclass(frozen=True)
class DocumentBatch:
    """Documents that are tokenized together, by column.

    Attributes:
        splits: Split of each document.
        text_bytes: Size of each text in UTF-8.
        hashes: Hash of each text, as in tables of documents.
        places: Place of each document in the source.
        urls: Address of each document, or empty.
        inputs: Element of `Source.inputs` that contains each document.
        scores: Scores of each document by cleaning rules.
        ids: Token ids of each document.
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
        """Number of tokens of each document."""
        return [ids.size for ids in self.ids]

    def select(self, is_selected: Sequence[bool]) -> "DocumentBatch":
        """Return some of the documents. is_selected: whether to select each document."""
        columns: dict[str, Any] = {}
        for column in fields(self):
            columns[column.name] = list(compress(getattr(self, column.name), is_selected))
        return DocumentBatch(**columns)
