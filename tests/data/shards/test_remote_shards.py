"""Shards read from a URL, in windows and through a bounded cache, give the same samples whatever happens on the way."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from megatape.config.sections.data import DataConfig
from megatape.data.io import retries
from megatape.data.io.retries import Retries
from megatape.data.shards.entries import Shard
from megatape.data.shards.index import load_index
from megatape.data.shards.reading.cache import CacheFolder, ShardCache
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.open_dataset import open_dataset
from megatape.data.training.datasets.token_dataset import TokenDataset
from tests.helpers.data.data_directory import first_byte
from tests.helpers.processes.load import scaled
from tests.helpers.processes.waiting import wait_until
from tests.helpers.processes.web import Fault, Web, served
from tests.helpers.runs.batches import mixture_of

LENGTH = 16
WINDOW = 2


@pytest.fixture
def web(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server of the data directory in data/. Failed requests are repeated at once."""
    monkeypatch.setattr(retries, "RETRIES", Retries(wait=0.01))
    files = {f"data/{path.name}": path.read_bytes() for path in directory.iterdir()}
    with served(**files) as web:
        yield web


def training_shards(directory: Path) -> list[Shard]:
    return list(load_index(directory).splits["train"].shards)


def dataset(location: str | Path, cache: CacheFolder | None = None, window: int = 0) -> TokenDataset:
    """Open the training split of a data directory."""
    return TokenDataset(StoredSplit(location, "train", cache), LENGTH, window=window)


def cached_names(tmp_path: Path) -> set[str]:
    return {path.name for path in tmp_path.glob("cache/*/*.tar")}


def cached_bytes(tmp_path: Path) -> int:
    """Return the size of all copies in the cache. Copies may be removed meanwhile."""
    total = 0
    for path in tmp_path.glob("cache/*/*.tar"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_a_url_gives_the_same_samples(directory: Path, web: Web, tmp_path: Path) -> None:
    """The server fails three times. The cache has room for two windows, so that every shard is copied once an epoch."""
    shards = training_shards(directory)
    max_shard_bytes = max(shard.bytes for shard in shards)
    max_bytes = 2 * WINDOW * max_shard_bytes
    local = dataset(directory, window=WINDOW)
    remote = dataset(web.url("data"), CacheFolder(tmp_path / "cache", max_bytes=max_bytes), WINDOW)
    assert remote.fingerprint == local.fingerprint
    assert remote.num_samples == local.num_samples
    local_samples = mixture_of(local)
    remote_samples = mixture_of(remote)

    web.faults += [Fault(status=503), Fault(after=700, then="reset"), Fault(after=900, then="end")]
    max_cached_bytes = 0
    for consumed in range(local.num_samples):
        expected = local_samples.sample(consumed)
        sample = remote_samples.sample(consumed)
        assert np.array_equal(sample.tokens, expected.tokens)
        assert np.array_equal(sample.targets, expected.targets)
        max_cached_bytes = max(max_cached_bytes, cached_bytes(tmp_path))

    copied = Counter[str]()
    for method, name, byte_range in web.requests:
        if method == "GET" and name.endswith(".tar") and not byte_range:
            copied[name] += 1
    assert copied.keys() >= {f"data/{shard.file}" for shard in shards}
    # Besides the shards: repetitions after faults, and the first windows of the next epoch.
    assert copied.total() <= len(shards) + 3 + 2 * WINDOW
    assert max_cached_bytes <= max_bytes + max_shard_bytes


def test_a_resumed_run_reads_the_same_samples_from_a_url(directory: Path, web: Web, tmp_path: Path) -> None:
    """The run resumes within a later epoch."""
    local = dataset(directory, window=WINDOW)
    max_bytes = 2 * WINDOW * max(shard.bytes for shard in training_shards(directory))
    remote = dataset(web.url("data"), CacheFolder(tmp_path / "cache", max_bytes=max_bytes), WINDOW)
    expected = mixture_of(local)
    resumed = mixture_of(remote)

    for consumed in (local.num_samples + 7, 5 * local.num_samples - 1):
        assert np.array_equal(resumed.sample(consumed).tokens, expected.sample(consumed).tokens)


def test_the_next_window_is_copied_ahead(directory: Path, web: Web, tmp_path: Path) -> None:
    mixture = mixture_of(dataset(web.url("data"), CacheFolder(tmp_path / "cache"), WINDOW))
    shards = training_shards(directory)

    mixture.sample(0)

    upcoming = mixture.order.upcoming_shards(mixture.order.locate(0))
    expected = {shards[number].file for number in upcoming}
    assert len(expected) == 2 * WINDOW
    wait_until(lambda: cached_names(tmp_path) == expected, "the copies of two windows", 20)


def test_ranks_that_share_a_small_cache_read_the_same_samples(directory: Path, tmp_path: Path) -> None:
    """The ranks remove each other's copies."""
    max_bytes = 2 * max(shard.bytes for shard in training_shards(directory))
    cache = CacheFolder(tmp_path / "cache", max_bytes=max_bytes)
    mixture = mixture_of(dataset(directory, window=1))
    expected = [mixture.sample(consumed).tokens for consumed in range(180)]
    correct_ranks = set[int]()

    def read(rank: int) -> None:
        shared = mixture_of(dataset(directory, cache, window=1))
        for consumed in range(40 * rank, 40 * rank + 60):
            assert np.array_equal(shared.sample(consumed).tokens, expected[consumed])
        correct_ranks.add(rank)

    ranks = [threading.Thread(target=read, args=(rank,)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=scaled(60))

    assert correct_ranks == {0, 1, 2, 3}


def test_a_copy_removed_before_it_is_opened_is_made_again(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank may remove a copy to free space."""
    local = ShardCache.local
    removed: list[Path] = []

    def remove_twice(self: ShardCache, shard: Shard) -> Path:
        path = local(self, shard)
        if len(removed) < 2:
            removed.append(path)
            path.unlink()
        return path

    monkeypatch.setattr(ShardCache, "local", remove_twice)
    cached = dataset(directory, CacheFolder(tmp_path / "cache"))

    assert np.array_equal(cached.tokens(0), dataset(directory).tokens(0))
    assert len(removed) == 2


def test_the_least_recently_used_copy_makes_room(directory: Path, tmp_path: Path) -> None:
    first, second, third = training_shards(directory)[:3]
    folder = CacheFolder(tmp_path / "cache", max_bytes=first.bytes + second.bytes)
    cache = ShardCache(folder, str(directory), load_index(directory))

    for shard in (first, second, first, third):
        cache.local(shard)
        # Make access times differ.
        time.sleep(0.01)

    assert cached_names(tmp_path) == {first.file, third.file}


def read_all_samples(dataset: TokenDataset) -> None:
    for index in range(dataset.num_samples):
        dataset.sample(index)


def test_a_corrupted_or_missing_shard_at_a_url_is_named(web: Web, tmp_path: Path) -> None:
    name = "data/train-000001.tar"
    content = bytearray(web.files[name])
    content[first_byte(0)] ^= 255
    remote = dataset(web.url("data"), CacheFolder(tmp_path / "cache"))

    web.files[name] = bytes(content)
    with pytest.raises(ValueError, match=rf"{web.url(name)} member 0: corrupted, bytes 0 to "):
        read_all_samples(remote)

    del web.files[name]
    with pytest.raises(OSError, match=f"data.cache .*cannot copy train-000001.tar.*{web.url(name)}.* 404"):
        read_all_samples(remote)


@pytest.mark.parametrize("window", [0, 3])
def test_a_cache_without_room_is_refused(directory: Path, tmp_path: Path, window: int) -> None:
    """Without a window, the cache needs room for all shards, otherwise for the largest ones of two windows."""
    sizes = sorted(shard.bytes for shard in training_shards(directory))
    num_bytes = sum(sizes)
    if window:
        num_bytes = sum(sizes[-2 * window :])
    settings = DataConfig(path=str(directory), sequence_length=LENGTH, cache=str(tmp_path / "cache"), window=window)

    open_dataset(settings.model_copy(update={"cache_bytes": num_bytes}), str(directory), "train")

    with pytest.raises(ValueError, match=rf"data.cache_bytes is {num_bytes - 1:,}, but .* take {num_bytes:,}: raise it"):
        open_dataset(settings.model_copy(update={"cache_bytes": num_bytes - 1}), str(directory), "train")


def test_shards_shorter_than_a_sample_are_refused(directory: Path) -> None:
    with pytest.raises(ValueError, match="no shard of .* holds a sample of 192 tokens"):
        TokenDataset(StoredSplit(directory, "train"), 192, window=1)
