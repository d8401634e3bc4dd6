"""Training data made of one dataset, and batches that can be compared."""

from typing import Any

from megatape.config.batches import BatchSizes
from megatape.config.data import DataConfig
from megatape.data.training.batch import Batch
from megatape.data.training.dataset import Dataset
from megatape.data.training.loader import Loader
from megatape.data.training.mixture import Mixture


def mixture_of(dataset: Dataset, seed: int = 3) -> Mixture:
    """The training data of a run on data.path."""
    return Mixture(DataConfig(path="data", sequence_length=dataset.sequence_length), {"": dataset}, seed)


def make_loader(dataset: Dataset, rank: int = 0, world_size: int = 1, seed: int = 3, **options: Any) -> Loader:
    """A loader of steps of 8 samples in micro-batches of 2, by default."""
    sizes: dict[str, Any] = {"batches": BatchSizes(8), "micro_batch_size": 2} | options
    return Loader(mixture_of(dataset, seed), rank=rank, world_size=world_size, **sizes)


def interleaved(ranks: list[list[Batch]]) -> list[Batch]:
    """The batches of a step in the order of its samples, from those of each rank."""
    return [batch for micro_step in zip(*ranks, strict=True) for batch in micro_step]


def rows(batches: list[Batch]) -> list[tuple[Any, ...]]:
    """One tuple per sample, comparable and sortable."""
    return [
        tuple(tuple(tensor[row].tolist()) for tensor in (batch.tokens, batch.targets, batch.position_ids))
        for batch in batches
        for row in range(len(batch.tokens))
    ]
