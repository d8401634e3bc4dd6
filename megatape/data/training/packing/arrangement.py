"""Arrangements: lists which spans of a split's token stream make up each packed sample."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from megatape.data.training.packing.best_fit import Packing

# Span layout in arrays and files.
SPAN = np.dtype([("begin", "<i8"), ("inputs", "<i4")])


class Span(NamedTuple):
    """Contiguous part of the split's stream within a sample.

    Attributes:
        begin: First token, as an index in the stream.
        inputs: Input tokens. The token after them is only a target.
    """

    begin: int
    inputs: int


@dataclass(frozen=True)
class PackedPart:
    """Samples made of one part of a split, such as a shard.

    Attributes:
        begins: First token of each span in the stream, int64 [spans].
        inputs: Inputs per span, int [spans].
        packing: Spans in each sample.
    """

    begins: np.ndarray
    inputs: np.ndarray
    packing: Packing


class Arrangement(ABC):
    """Base class of arrangements.

    Attributes:
        num_samples: Number of samples.
        num_inputs: Inputs in all samples.
        shard_samples: Samples per part, int64 [parts].
    """

    num_samples: int
    num_inputs: int
    shard_samples: np.ndarray

    @abstractmethod
    def spans(self, sample: int) -> list[Span]:
        """Return a sample's spans.

        Raises:
            UserError: The arrangement is corrupted.
            OSError: It cannot be read.
        """


class ArrangementInMemory(Arrangement):
    """Arrangement in memory, taking 12 bytes per span and 8 per sample.

    Args:
        parts: Parts of the split, in order.
    """

    def __init__(self, parts: Iterable[PackedPart]) -> None:
        spans = []
        sizes = []
        for part in parts:
            spans.append(span_array(part))
            sizes.append(part.packing.sizes)
        self._spans = np.concatenate(spans)
        # Sample i has spans [starts[i], starts[i + 1]).
        self._starts = np.r_[0, np.cumsum(np.concatenate(sizes))]
        self.shard_samples = np.array([part.size for part in sizes])
        self.num_samples = int(self.shard_samples.sum())
        self.num_inputs = int(self._spans["inputs"].sum(dtype=np.int64))

    def spans(self, sample: int) -> list[Span]:
        begin = self._starts.item(sample)
        end = self._starts.item(sample + 1)
        return [Span._make(span) for span in self._spans[begin:end].tolist()]


def span_array(part: PackedPart) -> np.ndarray:
    """Return a part's spans, sample after sample, SPAN [spans]."""
    order = part.packing.order
    spans = np.empty(order.size, SPAN)
    spans["begin"] = part.begins[order]
    spans["inputs"] = part.inputs[order]
    return spans
