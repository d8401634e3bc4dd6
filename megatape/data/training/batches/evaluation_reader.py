"""Makes the evaluation batches for one data-parallel rank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from megatape.data.training.batches.batch import Batch, make_batch
from megatape.data.training.batches.positions import FROM_ZERO, Positions
from megatape.data.training.datasets.dataset import Dataset
from megatape.data.training.selection import SampleGroups
from megatape.nn.targets import IGNORE_INDEX


class GroupBatch(NamedTuple):
    """Evaluation batch with samples from one group."""

    group: str
    batch: Batch


class _GroupSamples(NamedTuple):
    """Indices of a batch's samples."""

    group: str
    indices: Sequence[int]


@dataclass(frozen=True)
class EvaluationReader:
    """Reads one rank's share of the evaluation batches.

    Attributes:
        batch_size: Samples per batch.
        rank: Data-parallel rank.
        world_size: Number of data-parallel ranks.
        positions: Token positions within a sample.
        seed: Seed for random positions.
    """

    batch_size: int
    rank: int = 0
    world_size: int = 1
    positions: Positions = FROM_ZERO
    seed: int = 0

    def batches(self, dataset: Dataset, groups: SampleGroups) -> Iterator[GroupBatch]:
        """Yield this rank's batches.

        Batches are distributed round-robin. Every rank gets the same number of batches, so collectives stay matched. Padding
        samples have no targets.

        Args:
            dataset: Validation dataset.
            groups: Sample indices for all ranks, by group.
        """
        parts: list[_GroupSamples] = []
        for group, indices in groups.items():
            for begin in range(0, len(indices), self.batch_size):
                parts.append(_GroupSamples(group, indices[begin : begin + self.batch_size]))
        first = parts[0]
        num_empty = -len(parts) % self.world_size
        parts += [_GroupSamples(first.group, [])] * num_empty

        row = self.positions.evaluation(dataset.sequence_length, self.seed)[None]
        for part in parts[self.rank :: self.world_size]:
            num_samples = len(part.indices)
            padding = [first.indices[0]] * (self.batch_size - num_samples)
            samples = dataset.samples([*part.indices, *padding])
            batch = make_batch(samples, row)
            batch.targets[num_samples:] = IGNORE_INDEX
            yield GroupBatch(part.group, batch)
