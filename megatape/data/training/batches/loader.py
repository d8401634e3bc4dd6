"""Makes the training batches for one data-parallel rank."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain

import numpy as np
import torch

from megatape.config.sections.batches import BatchSizes
from megatape.data.training.batches.batch import Batch, make_batch
from megatape.data.training.batches.positions import FROM_ZERO, Positions
from megatape.data.training.mixing.mixture import Mixture
from megatape.data.training.mixing.order import sample_hash


@dataclass
class Loader:
    """Training batches for one rank, depending only on how many samples have been consumed.

    A step has the same samples at every world size.

    Attributes:
        data: Corpora and their order. Its seed also decides positions and dropout.
        batches: Samples per optimizer step, over all ranks and micro-batches.
        micro_batch_size: Samples per forward pass on one rank (b).
        rank: Data-parallel rank.
        world_size: Number of data-parallel ranks.
        positions: Token positions, which may depend on how many samples precede this one.
        warmup: Stages with shorter sequences: length -> consumed samples at which the stage ends. Samples are cut
            into sequences, numbered as if all samples had been as short.
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
        assert self.batches.full % (self.micro_batch_size * self.world_size) == 0, "Config.check_divides checks it"

    def step(self, consumed: int) -> list[Batch]:
        """Return this rank's micro-batches for the step after `consumed` samples, counting all ranks and epochs."""
        assert consumed >= 0
        length = self.sequence_length(consumed)
        return [self._batch(samples, length) for samples in self._micro_batches(consumed)]

    def sequence_length(self, consumed: int) -> int:
        """Return the sequence length in the step after `consumed` samples."""
        for length, end in self.warmup.items():
            if consumed < end:
                return length
        return self.data.sequence_length

    def digest(self, consumed: int) -> int:
        """Return the digest of this rank's samples in the step after `consumed` samples, see SampleOrder.digest."""
        return self.data.order.digest(chain.from_iterable(self._micro_batches(consumed)))

    def _micro_batches(self, consumed: int) -> list[range]:
        """Return how many samples precede each of this rank's samples, by micro-batch."""
        first = consumed + self.rank * self.micro_batch_size
        stride = self.world_size * self.micro_batch_size
        begins = range(first, consumed + self.batches.after(consumed), stride)
        return [range(begin, begin + self.micro_batch_size) for begin in begins]

    def _batch(self, samples: range, length: int) -> Batch:
        sequences = self.data.samples(samples).cut(length)
        # Number the sequences as if all samples had been as short.
        parts = self.data.sequence_length // length
        numbers = range(samples.start * parts, samples.stop * parts)
        seed = self.data.seed
        rows = numbers
        if self.positions == FROM_ZERO:
            rows = numbers[:1]
        positions = [self.positions.training(length, seed, number) for number in rows]
        batch = make_batch(sequences, np.stack(positions))
        batch.dropout_seeds = torch.tensor([sample_hash(seed, number, 2**63) for number in numbers])
        return batch
