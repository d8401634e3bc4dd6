"""Shards that are read in windows and from a URL, by way of a bounded cache: the same samples, whatever happens on the way."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from megatape.config.data import DataConfig
from megatape.data.io import retries
from megatape.data.io.retries import Retries
from megatape.data.shards.cache import CacheFolder, ShardCache
from megatape.data.shards.entries import Shard
from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.open_dataset import open_dataset
from megatape.data.training.token_dataset import TokenDataset
from tests.helpers.data.data_directory import Documents, MakeDirectory, first_byte
from tests.helpers.processes.load import scaled
from tests.helpers.processes.web import Fault, Web, served
from tests.helpers.runs.batches import mixture_of

LENGTH = 16
WINDOW = 2


@pytest.fixture
def directory(make_directory: MakeDirectory, documents: Documents) -> Path:
    return make_directory(documents)


@pytest.fixture
def web(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server of the directory under the name data/, which is asked again at once where it fails."""
    monkeypatch.setattr(retries, "RETRIES", Retries(wait=0.01))
    with served(**{f"data/{path.name}": path.read_bytes() for path in directory.iterdir()}) as web:
        yield web


def size(path: Path) -> int:
    """0 if it has just been removed."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def test_a_url_gives_the_same_samples(directory: Path, web: Web, tmp_path: Path) -> None:
    """Over an epoch and from within the next, each shard once, with room for two windows, though the server fails."""
    local = TokenDataset(StoredSplit(directory, "train"), LENGTH, window=WINDOW)
    shards = load_index(directory).splits["train"].shards
    folder = CacheFolder(tmp_path / "cache", max_bytes=2 * WINDOW * max(shard.bytes for shard in shards))
    remote = TokenDataset(StoredSplit(web.url("data"), "train", folder), LENGTH, window=WINDOW)
    assert (remote.fingerprint, remote.num_samples) == (local.fingerprint, local.num_samples)
    web.faults += [Fault(status=503), Fault(after=700, then="reset"), Fault(after=900, then="end")]
    most = 0
    fetched = mixture_of(remote)
    read = mixture_of(local)
    for place in range(local.num_samples):
        ours = fetched.sample(place)
        theirs = read.sample(place)
        assert np.array_equal(ours.tokens, theirs.tokens) and np.array_equal(ours.targets, theirs.targets)
        most = max(most, sum(map(size, folder.root.glob("*/*.tar"))))
    begun = Counter(name for method, name, part in web.requests if method == "GET" and name.endswith(".tar") and not part)
    assert begun.keys() >= {f"data/{shard.file}" for shard in shards}
    assert sum(begun.values()) <= len(shards) + 3 + 2 * WINDOW, (
        "one for each shard, each fault, and the next epoch's first windows"
    )
    assert folder.max_bytes is not None and most <= folder.max_bytes + max(shard.bytes for shard in shards)
    resumed = mixture_of(TokenDataset(StoredSplit(web.url("data"), "train", folder), LENGTH, window=WINDOW))
    for place in (local.num_samples + 7, 5 * local.num_samples - 1):
        assert np.array_equal(resumed.sample(place).tokens, read.sample(place).tokens)


def test_the_next_window_is_copied_ahead(directory: Path, web: Web, tmp_path: Path) -> None:
    remote = TokenDataset(StoredSplit(web.url("data"), "train", CacheFolder(tmp_path / "cache")), LENGTH, window=WINDOW)
    mixture = mixture_of(remote)
    mixture.sample(0)
    shards = load_index(directory).splits["train"].shards
    wanted = {shards[number].file for number in mixture.order.upcoming_shards(mixture.order.locate(0))}
    assert len(wanted) == 2 * WINDOW
    deadline = time.monotonic() + 20
    while {copy.name for copy in tmp_path.glob("cache/*/*.tar")} != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ranks_that_share_a_small_cache(directory: Path, tmp_path: Path) -> None:
    """Each removes what the others read, and all read right."""
    shards = load_index(directory).splits["train"].shards
    folder = CacheFolder(tmp_path / "cache", max_bytes=2 * max(shard.bytes for shard in shards))
    expected = mixture_of(TokenDataset(StoredSplit(directory, "train"), LENGTH, window=1))
    tokens = [expected.sample(place).tokens for place in range(180)]
    wrong = set(range(4))

    def read(rank: int) -> None:
        mine = mixture_of(TokenDataset(StoredSplit(directory, "train", folder), LENGTH, window=1))
        places = range(40 * rank, 40 * rank + 60)
        if all(np.array_equal(mine.sample(place).tokens, tokens[place]) for place in places):
            wrong.remove(rank)

    ranks = [threading.Thread(target=read, args=(rank,)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=scaled(60))
    assert not wrong


def test_a_copy_that_is_removed_before_it_is_opened(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rank that makes room: it is made again."""
    local = ShardCache.local
    removed: list[Path] = []

    def unlucky(self: ShardCache, shard: Shard) -> Path:
        path = local(self, shard)
        if len(removed) < 2:
            removed.append(path)
            path.unlink()
        return path

    monkeypatch.setattr(ShardCache, "local", unlucky)
    cached = TokenDataset(StoredSplit(directory, "train", CacheFolder(tmp_path / "cache")), LENGTH)
    assert np.array_equal(cached.tokens(0), TokenDataset(StoredSplit(directory, "train"), LENGTH).tokens(0))
    assert len(removed) == 2


def test_what_was_needed_least_recently_makes_room(directory: Path, tmp_path: Path) -> None:
    index = load_index(directory)
    first, second, third = index.splits["train"].shards[:3]
    copies = ShardCache(CacheFolder(tmp_path / "cache", max_bytes=first.bytes + second.bytes), str(directory), index)
    for shard in (first, second, first, third):
        copies.local(shard)
        time.sleep(0.01)
    assert {path.name for path in tmp_path.glob("cache/*/*.tar")} == {first.file, third.file}


def test_a_corrupted_shard_at_a_url(directory: Path, web: Web, tmp_path: Path) -> None:
    name = "data/train-000001.tar"
    content = bytearray(web.files[name])
    content[first_byte(0)] ^= 255
    web.files[name] = bytes(content)
    remote = TokenDataset(StoredSplit(web.url("data"), "train", CacheFolder(tmp_path / "cache")), LENGTH)
    with pytest.raises(ValueError, match=rf"{web.url(name)} member 0: corrupted, bytes 0 to "):
        for index in range(remote.num_samples):
            remote.sample(index)
    del web.files[name]
    with pytest.raises(OSError, match=f"data.cache .*cannot copy train-000001.tar.*{web.url(name)}.* 404"):
        for index in range(remote.num_samples):
            remote.sample(index)


def test_a_cache_without_room(directory: Path, tmp_path: Path) -> None:
    sizes = sorted(shard.bytes for shard in load_index(directory).splits["train"].shards)
    for window, needed in ((0, sum(sizes)), (3, sum(sizes[-6:]))):
        settings = DataConfig(path=str(directory), sequence_length=LENGTH, cache=str(tmp_path / "cache"), window=window)
        open_dataset(settings.model_copy(update={"cache_bytes": needed}), str(directory), "train")
        with pytest.raises(ValueError, match=rf"data.cache_bytes is {needed - 1:,}, but .* take {needed:,}: raise it"):
            open_dataset(settings.model_copy(update={"cache_bytes": needed - 1}), str(directory), "train")
    with pytest.raises(ValueError, match="no shard of .* holds a sample of 192 tokens"):
        TokenDataset(StoredSplit(directory, "train"), 192, window=1)
