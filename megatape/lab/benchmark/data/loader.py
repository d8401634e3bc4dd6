"""Speed of reading training samples with our loader, with plain webdataset and with mapped files, from the same shards.

Times are CPU times of all threads, with the files in the page cache. Readers take turns, and the fastest round of each counts.
"""

import io
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from megatape.config.sections.batches import BatchSizes
from megatape.config.sections.data import DataConfig
from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.batches.loader import Loader
from megatape.data.training.datasets.best_fit_dataset import BestFitDataset
from megatape.data.training.datasets.dataset import Dataset
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.mixing.mixture import Mixture
from megatape.errors import UserError, flag
from megatape.lab.benchmark.figures.cells import ratio_cell
from megatape.lab.benchmark.figures.timing import Timer
from megatape.utils.text.tables import markdown

# Samples per batch.
BATCH = 32
SEED = 0
ROUNDS = 5
# Our reader with default settings, the baseline for ratios.
BASELINE_READER = "packed"

# Tokens and targets, int64 [BATCH, N].
TokensAndTargets = tuple[Tensor, Tensor]
# Opens the data, skips a number of samples, and yields batches forever.
BatchReader = Callable[[int], Iterator[TokensAndTargets]]


@dataclass(frozen=True)
class ReaderSpeed:
    """Tokens per second, and seconds of waiting for the first batch when resuming in the middle."""

    reading: float
    waiting: float


@dataclass(frozen=True)
class LoaderResult:
    """Speed of all readers on the same data.

    Attributes:
        num_samples: Number of samples.
        length: Tokens per sample.
        readers: Name of the reader -> speed.
        copying: Tokens per second when copying the stored ids in memory, an upper bound.
    """

    num_samples: int
    length: int
    readers: dict[str, ReaderSpeed]
    copying: float


def report(directory: Path, length: int, rounds: int = ROUNDS) -> list[str]:
    """Measure the readers, and return paragraphs about them. Arguments and errors are those of `measure`."""
    result = measure(directory, length, rounds)
    summary = (
        f"{result.num_samples:,} samples of {length} tokens, batches of {BATCH}; copying the stored ids in memory: "
        f"{result.copying / 1e6:,.0f} million tokens per second"
    )
    return [summary, table(result)]


def table(result: LoaderResult) -> str:
    """Return a table with a row per reader."""
    baseline = result.readers[BASELINE_READER].reading
    rows = []
    for name, speed in result.readers.items():
        rows.append(
            [
                name,
                f"{speed.reading / 1e6:.2f}",
                f"{speed.reading / result.copying:.1%}",
                ratio_cell(speed.reading / baseline),
                f"{1e3 * speed.waiting:.1f}",
            ]
        )
    header = ["reader", "million tokens/s", "of copying", "of packed", "ms from opening to a batch in the middle"]
    return markdown(header, rows)


def measure(directory: Path, length: int, rounds: int) -> LoaderResult:
    """Measure the readers on one epoch of the training split.

    Args:
        directory: Data directory.
        length: Tokens per sample.
        rounds: Timed rounds.

    Raises:
        UserError: The directory is corrupted, or has too few tokens.
        FileNotFoundError: The directory is missing.
    """
    num_samples = TokenDataset(StoredSplit(directory, "train"), length).num_samples
    steps = num_samples // BATCH
    if steps < 2:
        raise UserError(
            f"{flag('data')} {directory} has {num_samples} samples of {flag('length')} {length}: give {2 * BATCH} or more"
        )
    timer = Timer(torch.device("cpu"), 1, clock=time.process_time)
    fastest = {name: _FastestRound(reader, timer, steps) for name, reader in _readers(directory, length).items()}
    copying = math.inf
    stored_batch = np.ones(BATCH * length, np.dtype(load_index(directory).dtype))
    for _ in range(rounds):
        for reader_round in fastest.values():
            reader_round.run()
        copying = min(copying, timer.seconds(partial(_copy, stored_batch, steps - 1)))

    num_tokens = (steps - 1) * BATCH * length
    speeds = {name: ReaderSpeed(num_tokens / seconds.reading, seconds.waiting) for name, seconds in fastest.items()}
    return LoaderResult(steps * BATCH, length, speeds, num_tokens / copying)


class _FastestRound:
    """Times a reader in rounds, keeping its fastest seconds.

    Attributes:
        reading: Seconds for reading all batches but the first, which opens the data.
        waiting: Seconds from opening the data to the first batch, when resuming in the middle.
    """

    def __init__(self, reader: BatchReader, timer: Timer, steps: int) -> None:
        self.reading = math.inf
        self.waiting = math.inf
        self._reader = reader
        self._timer = timer
        self._steps = steps

    def run(self) -> None:
        """Run a round."""
        batches = self._reader(0)
        next(batches)
        remaining = itertools.islice(batches, self._steps - 1)
        self.reading = min(self.reading, self._timer.seconds(partial(deque, remaining, 0)))
        resume = partial(_read_one, self._reader, self._steps // 2 * BATCH)
        self.waiting = min(self.waiting, self._timer.seconds(resume))


def _readers(directory: Path, length: int) -> dict[str, BatchReader]:
    return {
        BASELINE_READER: ours(directory, lambda split: TokenDataset(split, length)),
        "packed, document masks": ours(directory, lambda split: TokenDataset(split, length, mask_documents=True)),
        "packed, windows of one shard": ours(directory, lambda split: TokenDataset(split, length, window=1)),
        "best_fit": ours(directory, lambda split: BestFitDataset(split, length)),
        "webdataset, in the order of the files": webdataset(directory, length),
        "numpy, mapped files": mapped_files(directory, length),
    }


def ours(directory: Path, cut: Callable[[StoredSplit], Dataset]) -> BatchReader:
    """Return a reader that uses the training loader."""

    def batches(consumed: int) -> Iterator[TokensAndTargets]:
        dataset = cut(StoredSplit(directory, "train"))
        settings = DataConfig(path=str(directory), sequence_length=dataset.sequence_length)
        mixture = Mixture(settings, {"": dataset}, SEED)
        loader = Loader(mixture, batches=BatchSizes(BATCH), micro_batch_size=BATCH, rank=0, world_size=1)
        for first in itertools.count(consumed, BATCH):
            (batch,) = loader.step(first)
            yield batch.tokens, batch.targets

    return batches


def webdataset(directory: Path, length: int) -> BatchReader:
    """Return a reader that uses webdataset, without verifying or shuffling."""
    shards = [str(directory / shard.file) for shard in load_index(directory).splits["train"].shards]

    def members() -> Iterator[np.ndarray]:
        """Yield the token ids of each shard member, epoch after epoch."""
        from webdataset import WebDataset

        while True:
            for member in WebDataset(shards, shardshuffle=False):
                yield np.load(io.BytesIO(member["npy"])).astype(np.int64)

    def batches(consumed: int) -> Iterator[TokensAndTargets]:
        batch_tokens = BATCH * length
        remaining = np.empty(0, np.int64)
        num_skipped = consumed * length
        for ids in members():
            remaining = np.concatenate([remaining, ids[num_skipped:]])
            num_skipped = max(0, num_skipped - ids.size)
            # One more token is needed as the last target.
            while remaining.size > batch_tokens:
                batch = torch.from_numpy(remaining[: batch_tokens + 1])
                remaining = remaining[batch_tokens:]
                yield batch[:-1].view(BATCH, length), batch[1:].view(BATCH, length)

    return batches


def mapped_files(directory: Path, length: int) -> BatchReader:
    """Return a reader that gathers ids at random offsets of mapped shards, without verifying, headers included.

    It is a lower bound of the time for reading shuffled samples.
    """
    index = load_index(directory)
    dtype = np.dtype(index.dtype)
    shards = [directory / shard.file for shard in index.splits["train"].shards]

    def batches(consumed: int) -> Iterator[TokensAndTargets]:
        generator = np.random.default_rng(consumed)
        files = [np.memmap(path, dtype, "r") for path in shards]
        while True:
            ids = files[generator.integers(len(files))]
            begins = generator.integers(0, ids.size - length, BATCH)
            rows = [ids[begin : begin + length + 1] for begin in begins]
            batch = torch.from_numpy(np.stack(rows).astype(np.int64))
            yield batch[:, :-1], batch[:, 1:]

    return batches


def _copy(batch: np.ndarray, count: int) -> None:
    for _ in range(count):
        batch.copy()


def _read_one(reader: BatchReader, consumed: int) -> None:
    next(reader(consumed))
