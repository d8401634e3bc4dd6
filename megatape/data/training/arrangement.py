"""Spans of a split's stream in each sample."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from megatape.data.training.best_fit import Packing

# Array of spans.
SPAN = np.dtype([("begin", "<i8"), ("inputs", "<i4")])


class Span(NamedTuple):
    """Part of a sample that is contiguous in the split's stream.

    Attributes:
        begin: Index of its first token in the stream.
        inputs: Number of its tokens that are inputs. The token after them is only a target.
    """

    begin: int
    inputs: int


@dataclass(frozen=True)
class PackedPart:
    """Samples of a part of a split, such as a shard.

    Attributes:
        begins: First token of each span in the stream, int64 [spans].
        inputs: Number of inputs of each span, int [spans].
        packing: Samples made of the spans.
    """

    begins: np.ndarray
    inputs: np.ndarray
    packing: Packing


class Arrangement(ABC):
    """Spans of each sample.

    Attributes:
        num_samples: Number of samples.
        num_inputs: Number of inputs of all samples.
        shard_samples: Number of samples of each part, int64 [parts].
    """

    num_samples: int
    num_inputs: int
    shard_samples: np.ndarray

    @abstractmethod
    def spans(self, sample: int) -> list[Span]:
        """Return the spans of a sample, by its number.

        Raises:
            UserError: The arrangement is corrupted.
            OSError: It cannot be read.
        """


class ArrangementInMemory(Arrangement):
    """Spans of each sample, in memory: 12 bytes a span and 8 a sample.

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
    """Return the spans of a part by sample, SPAN [spans]."""
    order = part.packing.order
    spans = np.empty(order.size, SPAN)
    spans["begin"] = part.begins[order]
    spans["inputs"] = part.inputs[order]
    return spans
