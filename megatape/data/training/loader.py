"""Batches for one data-parallel rank.

b sequences of a micro-batch, N tokens of a sequence.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatape.config.training import BatchSizes
from megatape.data.training.dataset import Dataset, TrainingSample
from megatape.data.training.mixture import Mixture
from megatape.data.training.order import sample_hash
from megatape.data.training.positions import FROM_ZERO, Positions
from megatape.data.training.selection import SampleGroups
from megatape.utils.targets import IGNORE_INDEX, target_mask


@dataclass
class Batch:
    """Samples of one forward pass, as int64 tensors.

    Attributes:
        tokens: Input ids, [b, N].
        targets: The next token of each token, [b, N]; IGNORE_INDEX where there is none.
        position_ids: The position of each token (order.py), [b, N]; one row in memory if all samples have the same.
        document_starts: The index in the sample of the first token of each token's document, [b, N]; None: no document mask.
        dropout_seeds: A random number of each training sample, by the samples before it, [b]; None: no dropout.
    """

    tokens: Tensor
    targets: Tensor
    position_ids: Tensor
    document_starts: Tensor | None
    dropout_seeds: Tensor | None = None

    @property
    def num_targets(self) -> int:
        """The number of targets that count in the loss."""
        return int(target_mask(self.targets.numpy()).sum())

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with each tensor changed. One row in memory remains one row."""

        def changed(tensor: Tensor) -> Tensor:
            return change(tensor[:1]).expand_as(tensor) if tensor.stride(0) == 0 else change(tensor)

        tensors: dict[str, Any] = {name: tensor if tensor is None else changed(tensor) for name, tensor in vars(self).items()}
        return Batch(**tensors)


@dataclass
class Loader:
    """The training batches of one rank: a pure function of the number of samples consumed so far.

    Attributes:
        data: The corpora and their order. Positions and dropout are drawn by its seed.
        batches: Samples in an optimizer step, over all ranks and micro-batches.
        micro_batch_size: Samples in a forward pass of one rank (b).
        rank, world_size: Among the data-parallel ranks; the samples of a step are the same for every world size.
        positions: The positions of the tokens of a sample; they may depend on how many samples came before it.
        warmup: Stages of shorter sequences, by length: the samples consumed at which each ends. The samples of a step are cut
            into sequences, which are numbered as if all samples had been as short.
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
        assert min(self.batches.full, self.micro_batch_size, self.world_size) >= 1 and 0 <= self.rank < self.world_size
        assert self.batches.full % (self.micro_batch_size * self.world_size) == 0, "Config.accumulation checks it"

    def step(self, consumed: int) -> list[Batch]:
        """This rank's micro-batches of the step after `consumed` samples, over all ranks and epochs."""
        assert consumed >= 0
        length = self.sequence_length(consumed)
        return [self._batch(samples, length) for samples in self._micro_batches(consumed)]

    def sequence_length(self, consumed: int) -> int:
        """Length of the samples of the step after `consumed`."""
        stages = (length for length, end in self.warmup.items() if consumed < end)
        return next(stages, self.data.sequence_length)

    def digest(self, consumed: int) -> int:
        """Digest of this rank's samples of that step (SampleOrder.digest)."""
        return self.data.order.digest(chain.from_iterable(self._micro_batches(consumed)))

    def _micro_batches(self, consumed: int) -> list[range]:
        """The numbers of samples before each of this rank's, by micro-batch."""
        first = consumed + self.rank * self.micro_batch_size
        stride = self.world_size * self.micro_batch_size
        begins = range(first, consumed + self.batches.after(consumed), stride)
        return [range(begin, begin + self.micro_batch_size) for begin in begins]

    def _batch(self, samples: range, length: int) -> Batch:
        parts = self.data.sequence_length // length
        sequences = [part for consumed in samples for part in _cut(self.data.sample(consumed), length)]
        numbers = range(samples.start * parts, samples.stop * parts)
        rows = numbers[:1] if self.positions == FROM_ZERO else numbers
        positions = [self.positions.training(length, self.data.seed, number) for number in rows]
        batch = _make_batch(sequences, np.stack(positions))
        batch.dropout_seeds = torch.tensor([sample_hash(self.data.seed, number, 2**63) for number in numbers])
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
    batches = [
        (name, samples[begin : begin + batch_size])
        for name, samples in groups.items()
        for begin in range(0, len(samples), batch_size)
    ]
    name, some = batches[0]
    batches += [(name, some[:0])] * (-len(batches) % world_size)
    row = positions.evaluation(dataset.sequence_length, seed)[None]
    for name, indices in batches[rank::world_size]:
        padding = [some[0]] * (batch_size - len(indices))
        batch = _make_batch([dataset.sample(index) for index in [*indices, *padding]], row)
        batch.targets[len(indices) :] = IGNORE_INDEX
        yield name, batch


def _cut(sample: TrainingSample, length: int) -> Iterator[TrainingSample]:
    """The sample in parts of `length` tokens, each with its own targets."""
    for begin in range(0, sample.tokens.size, length):
        part = slice(begin, begin + length)
        starts = None if sample.document_starts is None else np.maximum(sample.document_starts[part] - begin, 0)
        yield TrainingSample(sample.tokens[part], sample.targets[part], starts)


def _make_batch(samples: Sequence[TrainingSample], positions: np.ndarray) -> Batch:
    """A batch of samples.

    Args:
        samples: b samples of N tokens.
        positions: Of their tokens or, with document starts, of those of each document; [b, N], or [1, N] if all have the same.
    """
    starts = [sample.document_starts for sample in samples if sample.document_starts is not None]
    document_starts = np.stack(starts) if starts else None
    if document_starts is not None:
        given = np.broadcast_to(positions, document_starts.shape)
        positions = np.take_along_axis(given, np.arange(given.shape[1]) - document_starts, axis=1)
        if (positions == positions[0]).all():
            positions = positions[:1]
    tokens = torch.from_numpy(np.stack([sample.tokens for sample in samples]))
    return Batch(
        tokens=tokens,
        targets=torch.from_numpy(np.stack([sample.targets for sample in samples])),
        position_ids=torch.from_numpy(positions).expand_as(tokens),
        document_starts=None if document_starts is None else torch.from_numpy(document_starts),
    )
