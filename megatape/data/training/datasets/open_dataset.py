"""Opens the dataset that `data.samples` asks for."""

from pathlib import Path

import numpy as np

from megatape.config.sections.data import DataConfig
from megatape.data.shards.index_formats.index_columns import shard_numbers
from megatape.data.shards.reading.cache import CacheFolder
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.best_fit_dataset import BestFitDataset
from megatape.data.training.datasets.dataset import Dataset
from megatape.data.training.datasets.document_dataset import DocumentDataset
from megatape.data.training.datasets.example_dataset import ExampleDataset
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.errors import UserError


def open_dataset(data: DataConfig, path: str, split_name: str) -> Dataset:
    """Open a split of a corpus, cut into samples as configured. Only training reads in windows.

    Args:
        data: Configuration section `data`.
        path: Path or URL of the data directory.
        split_name: Split to open.

    Raises:
        UserError, FileNotFoundError: The data directory is missing or corrupted, does not fit the configuration, or needs a
            larger cache.
    """
    cache = None
    if data.cache:
        cache = CacheFolder(Path(data.cache), data.cache_bytes)
    window = 0
    if split_name == "train":
        window = data.window
    split = StoredSplit(path, split_name, cache)
    if data.cache and data.cache_bytes is not None:
        _check_cache_size(split, data.cache_bytes, window)

    length = data.sequence_length
    match data.samples:
        case "packed":
            return TokenDataset(split, length, mask_documents=data.mask_documents, window=window)
        case "best_fit":
            return BestFitDataset(split, length, window=window)
        case "documents":
            skips = data.missing_prompt_end == "skip"
            return DocumentDataset(split, length, prompt_end=data.prompt_end, skip_without_prompt_end=skips)
        case "examples":
            return ExampleDataset(split, length, pack_examples=data.mask_documents)


def _check_cache_size(split: StoredSplit, max_bytes: int, window: int) -> None:
    """Check that a cache can hold what training reads at a time: this window and the next, or without windows all shards.

    Args:
        split: Split whose shards are copied to the cache.
        max_bytes: Maximum size of the cache.
        window: Shards that training mixes at a time; 0 for all.

    Raises:
        UserError: The cache is too small.
    """
    sizes = np.sort(shard_numbers(split.shards, "bytes"))[::-1]
    content = "all shards, which training without data.window mixes"
    if window:
        content = f"two windows of {window} shards"
        sizes = sizes[: 2 * window]
    needed = int(sizes.sum())
    if needed > max_bytes:
        raise UserError(
            f"data.cache_bytes is {max_bytes:,}, but {content} of {split.description} take {needed:,}: raise it, or choose a "
            "smaller data.window"
        )
