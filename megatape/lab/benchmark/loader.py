"""Measures how fast training samples are read: by us, and by plain webdataset from the same shards.

Each reader gives batches of int64 tokens and targets. Times are of the processor, all threads together, with the files in the
page cache; rounds of all readers alternate, and the best of each counts.
"""

import io
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from megatape.config.data import DataConfig
from megatape.config.training import BatchSizes
from megatape.data.shards.index import load_index
from megatape.data.training.dataset import Dataset, TokenDataset
from megatape.data.training.loader import Loader
from megatape.data.training.mixture import Mixture
from megatape.data.training.packing import BestFitDataset
from megatape.errors import UserError
from megatape.lab.benchmark.timing import Timer
from megatape.utils.tables import markdown

# samples
BATCH = 32
SEED = 0
ROUNDS = 5

Pair = tuple[Tensor, Tensor]  # tokens and targets, [BATCH, N]
Reader = Callable[[int], Iterator[Pair]]  # the batches after so many samples, without end; each call opens the data anew


def report(directory: Path, length: int) -> Iterator[str]:
    """Yields the table for samples of `length` tokens of the training split of a data directory, read for an epoch.

    Raises UserError or FileNotFoundError if the directory is corrupted, or has too few tokens.
    """
    num_samples = TokenDataset(directory, "train", length).num_samples
    steps = num_samples // BATCH
    if steps < 2:
        raise UserError(f"data {directory} has {num_samples} samples of `length` {length}: give {2 * BATCH} or more")
    dtype = np.dtype(load_index(directory).dtype)
    readers = {
        "packed": ours(lambda: TokenDataset(directory, "train", length)),
        "packed, windows of one shard": ours(lambda: TokenDataset(directory, "train", length, window=1)),
        "best_fit": ours(lambda: BestFitDataset(directory, "train", length)),
        "webdataset, in the order of the files": webdataset(directory, length),
    }
    rates, waits, copying = _measure(readers, steps, length, dtype)
    yield (
        f"{steps * BATCH:,} samples of {length} tokens, batches of {BATCH}; copying the stored ids in memory: "
        f"{copying / 1e6:,.0f} million tokens a second"
    )
    rows = [
        [name, f"{rate / 1e6:.2f}", f"{rate / copying:.1%}", f"{rate / rates['packed']:.2f}", f"{1e3 * waits[name]:.1f}"]
        for name, rate in rates.items()
    ]
    header = ["reader", "million tokens/s", "of copying", "of packed", "ms from opening to a batch in the middle"]
    yield markdown(header, rows)


def ours(open_dataset: Callable[[], Dataset]) -> Reader:
    """As training reads."""

    def batches(consumed: int) -> Iterator[Pair]:
        dataset = open_dataset()
        settings = DataConfig(path=dataset.directory, sequence_length=dataset.sequence_length)
        data = Mixture(settings, {"": dataset}, SEED)
        loader = Loader(data, batches=BatchSizes(BATCH), micro_batch_size=BATCH, rank=0, world_size=1)
        for first in itertools.count(consumed, BATCH):
            (batch,) = loader.step(first)
            yield batch.tokens, batch.targets

    return batches


def webdataset(directory: Path, length: int) -> Reader:
    """The shards as webdataset gives them: one member after the other, nothing verified or permuted."""
    shards = [str(directory / shard.file) for shard in load_index(directory).splits["train"].shards]

    def batches(consumed: int) -> Iterator[Pair]:
        from webdataset import WebDataset

        wanted = BATCH * length
        rest = np.empty(0, np.int64)
        skipped = consumed * length
        for member in itertools.chain.from_iterable(WebDataset(shards, shardshuffle=False) for _ in itertools.count()):
            ids = np.load(io.BytesIO(member["npy"])).astype(np.int64)
            rest = np.concatenate([rest, ids[skipped:]])
            skipped = max(0, skipped - ids.size)
            while rest.size > wanted:
                batch = torch.from_numpy(rest[: wanted + 1])
                rest = rest[wanted:]
                yield batch[:-1].view(BATCH, length), batch[1:].view(BATCH, length)

    return batches


def _measure(
    readers: dict[str, Reader], steps: int, length: int, dtype: np.dtype
) -> tuple[dict[str, float], dict[str, float], float]:
    """Tokens per second of each reader, seconds from opening to a batch in the middle, and the tokens per second of copying."""
    seconds = {name: [np.inf, np.inf] for name in readers}
    copying = np.inf
    source = np.ones(BATCH * length, dtype)
    timer = Timer(torch.device("cpu"), 1, clock=time.process_time)
    for _ in range(ROUNDS):
        for name, reader in readers.items():
            batches = reader(0)
            next(batches)
            spent = timer.seconds(lambda: deque(itertools.islice(batches, steps - 1), 0))  # noqa: B023  # called at once
            waited = timer.seconds(lambda: next(reader(steps // 2 * BATCH)))  # noqa: B023
            seconds[name] = [min(*pair) for pair in zip(seconds[name], (spent, waited), strict=True)]
        copying = min(copying, timer.seconds(lambda: [source.copy() for _ in range(steps - 1)]))
    tokens = (steps - 1) * BATCH * length
    rates = {name: tokens / spent for name, (spent, _) in seconds.items()}
    return rates, {name: waited for name, (_, waited) in seconds.items()}, tokens / copying
