"""Batches for one data-parallel rank.

Dimensions: b sequences per micro-batch, N tokens per sequence.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatape.config.batches import BatchSizes
from megatape.data.training.dataset import Dataset, TrainingSample
from megatape.data.training.mixture import Mixture
from megatape.data.training.order import sample_hash
from megatape.data.training.positions import FROM_ZERO, Positions
from megatape.data.training.selection import SampleGroups
from megatape.nn.targets import IGNORE_INDEX, target_mask


@dataclass
class Batch:
    """Samples of one forward pass, as int64 tensors.

    Attributes:
        tokens: Input ids, [b, N].
        targets: The next token of each token, [b, N], or IGNORE_INDEX.
        position_ids: Position of each token (positions.py), [b, N]. A single row in memory if all samples have the same.
        document_starts: Index in the sample of the first token of each token's document, [b, N]. None without document mask.
        dropout_seeds: Random number of each training sample, which depends on the number of samples before it, [b]. None
            without dropout.
    """

    tokens: Tensor
    targets: Tensor
    position_ids: Tensor
    document_starts: Tensor | None
    dropout_seeds: Tensor | None = None

    @property
    def num_targets(self) -> int:
        """Number of targets that count in the loss."""
        return int(target_mask(self.targets.numpy()).sum())

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with each tensor changed. A single row in memory remains a single row."""
        tensors: dict[str, Any] = {}
        for name, tensor in vars(self).items():
            if tensor is None:
                tensors[name] = None
            elif tensor.stride(0) == 0:
                tensors[name] = change(tensor[:1]).expand_as(tensor)
            else:
                tensors[name] = change(tensor)
        return Batch(**tensors)


@dataclass
class Loader:
    """The training batches of one rank: a pure function of the number of samples consumed so far.

    The samples of a step are the same for every world size.

    Attributes:
        data: Corpora and their order. Positions and dropout are drawn by its seed.
        batches: Samples per optimizer step, over all ranks and micro-batches.
        micro_batch_size: Samples per forward pass of one rank (b).
        rank: Rank among the data-parallel ranks.
        world_size: Number of data-parallel ranks.
        positions: Positions of the tokens of a sample. They may depend on how many samples came before it.
        warmup: Stages of shorter sequences: length -> number of consumed samples at which the stage ends. The samples of a
            step are cut into sequences, numbered as if all samples had been as short.
    """

    data: Mixture
    _: KW_ONLY
    batches: BatchSizes
    micro_batch_size: int
    rank: int
    world_size: int
    positions: Positions = FROM_ZERO
    warmup: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert min(self.batches.full, self.micro_batch_size, self.world_size) >= 1
        assert 0 <= self.rank < self.world_size
        assert self.batches.full % (self.micro_batch_size * self.world_size) == 0, "Config.accumulation checks it"

    def step(self, consumed: int) -> list[Batch]:
        """Return this rank's micro-batches of the step after `consumed` samples, over all ranks and epochs."""
        assert consumed >= 0
        length = self.sequence_length(consumed)
        return [self._batch(samples, length) for samples in self._micro_batches(consumed)]

    def sequence_length(self, consumed: int) -> int:
        """Return the length of the samples of the step after `consumed` samples."""
        for length, end in self.warmup.items():
            if consumed < end:
                return length
        return self.data.sequence_length

    def digest(self, consumed: int) -> int:
        """Return the digest of this rank's samples of the step after `consumed` samples (SampleOrder.digest)."""
        return self.data.order.digest(chain.from_iterable(self._micro_batches(consumed)))

    def _micro_batches(self, consumed: int) -> list[range]:
        """Return how many samples precede each of this rank's samples, by micro-batch."""
        first = consumed + self.rank * self.micro_batch_size
        stride = self.world_size * self.micro_batch_size
        begins = range(first, consumed + self.batches.after(consumed), stride)
        return [range(begin, begin + self.micro_batch_size) for begin in begins]

    def _batch(self, samples: range, length: int) -> Batch:
        sequences: list[TrainingSample] = []
        for consumed in samples:
            sequences += _cut(self.data.sample(consumed), length)

        # Each sequence has the number that it would have if all samples had been as short.
        parts = self.data.sequence_length // length
        numbers = range(samples.start * parts, samples.stop * parts)
        seed = self.data.seed
        rows = numbers
        if self.positions == FROM_ZERO:
            rows = numbers[:1]
        positions = [self.positions.training(length, seed, number) for number in rows]
        batch = _make_batch(sequences, np.stack(positions))
        batch.dropout_seeds = torch.tensor([sample_hash(seed, number, 2**63) for number in numbers])
        return batch


def evaluation_batches(
    dataset: Dataset,
    groups: SampleGroups,
    batch_size: int,
    rank: int,
    world_size: int,
    positions: Positions = FROM_ZERO,
    seed: int = 0,
) -> Iterator[tuple[str, Batch]]:
    """Yield this rank's share of the evaluation batches, each with the group that all of its samples belong to.

    Batches are distributed round-robin. Every rank gets the same number of batches, so collectives stay matched. Samples added
    as padding have no targets.

    Args:
        dataset: A validation split.
        groups: Indices of all ranks' samples, by group.
        batch_size: Number of samples per batch.
        rank: Rank among the data-parallel ranks.
        world_size: Number of data-parallel ranks.
        positions: Positions of the tokens of a sample.
        seed: Seed of random positions.
    """
    batches: list[tuple[str, Sequence[int]]] = []
    for name, indices in groups.items():
        for begin in range(0, len(indices), batch_size):
            batches.append((name, indices[begin : begin + batch_size]))
    first_name, first_indices = batches[0]
    num_empty = -len(batches) % world_size
    batches += [(first_name, [])] * num_empty

    row = positions.evaluation(dataset.sequence_length, seed)[None]
    for name, indices in batches[rank::world_size]:
        padding = [first_indices[0]] * (batch_size - len(indices))
        samples = [dataset.sample(index) for index in [*indices, *padding]]
        batch = _make_batch(samples, row)
        batch.targets[len(indices) :] = IGNORE_INDEX
        yield name, batch


def _cut(sample: TrainingSample, length: int) -> Iterator[TrainingSample]:
    """Cut a sample into parts of `length` tokens, each with its own targets."""
    for begin in range(0, sample.tokens.size, length):
        part = slice(begin, begin + length)
        starts = None
        if sample.document_starts is not None:
            starts = np.maximum(sample.document_starts[part] - begin, 0)
        yield TrainingSample(sample.tokens[part], sample.targets[part], starts)


def _make_batch(samples: Sequence[TrainingSample], positions: np.ndarray) -> Batch:
    """Make a batch of samples.

    Args:
        samples: b samples of N tokens.
        positions: Positions of the tokens of a sample or, with document starts, of each document, [b, N], or [1, N] if all
            samples have the same.
    """
    document_starts = None
    starts = [sample.document_starts for sample in samples if sample.document_starts is not None]
    if starts:
        stacked = np.stack(starts)
        document_starts = torch.from_numpy(stacked)
        # Positions begin anew in each document.
        index_in_document = np.arange(stacked.shape[1]) - stacked
        positions = np.take_along_axis(np.broadcast_to(positions, stacked.shape), index_in_document, axis=1)
        if (positions == positions[0]).all():
            positions = positions[:1]

    tokens = torch.from_numpy(np.stack([sample.tokens for sample in samples]))
    targets = torch.from_numpy(np.stack([sample.targets for sample in samples]))
    position_ids = torch.from_numpy(positions).expand_as(tokens)
    return Batch(tokens, targets, position_ids, document_starts)
