"""Training data with one dataset, and comparing batches."""

from typing import Any

from megatape.config.sections.batches import BatchSizes
from megatape.config.sections.data import DataConfig
from megatape.data.training.batches.batch import Batch
from megatape.data.training.batches.loader import Loader
from megatape.data.training.datasets.dataset import Dataset
from megatape.data.training.mixing.mixture import Mixture


def mixture_of(dataset: Dataset, seed: int = 3) -> Mixture:
    """Return the training data for a run on data.path."""
    return Mixture(DataConfig(path="data", sequence_length=dataset.sequence_length), {"": dataset}, seed)


def make_loader(dataset: Dataset, rank: int = 0, world_size: int = 1, seed: int = 3, **options: Any) -> Loader:
    """Return a loader, by default loading 8 samples per step in micro-batches of 2."""
    sizes: dict[str, Any] = {"batches": BatchSizes(8), "micro_batch_size": 2} | options
    return Loader(mixture_of(dataset, seed), rank=rank, world_size=world_size, **sizes)


def interleaved(ranks: list[list[Batch]]) -> list[Batch]:
    """Return a step's batches in sample order, joining those from each rank."""
    return [batch for micro_step in zip(*ranks, strict=True) for batch in micro_step]


def rows(batches: list[Batch]) -> list[tuple[Any, ...]]:
    """One tuple per sample, comparable and sortable."""
    return [
        tuple(tuple(tensor[row].tolist()) for tensor in (batch.tokens, batch.targets, batch.position_ids))
        for batch in batches
        for row in range(len(batch.tokens))
    ]
