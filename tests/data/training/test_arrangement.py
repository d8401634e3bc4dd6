"""Stored samples of a split: packed once a node, equal to those in memory, and verified when read."""

import re
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training import best_fit_dataset
from megatape.data.training.arrangement import ArrangementInMemory, PackedPart
from megatape.data.training.arrangement_writer import store_arrangement
from megatape.data.training.best_fit import Packing, pack
from megatape.data.training.best_fit_dataset import BestFitDataset
from megatape.data.training.stored_arrangement import StoredArrangement
from megatape.errors import UserError
from tests.helpers.data.data_directory import Documents, MakeDirectory, edit_index, flip
from tests.helpers.processes.load import scaled

LENGTH = 16
IDENTITY = "5" * 64


@pytest.fixture
def directory(make_directory: MakeDirectory, documents: Documents) -> Path:
    return make_directory(documents)


def samples_of(dataset: BestFitDataset) -> list[tuple[list[int], list[int]]]:
    samples = map(dataset.sample, range(dataset.num_samples))
    return [(sample.tokens.tolist(), sample.targets.tolist()) for sample in samples]


def stored_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("packing-*.bin"))


def parts(num_parts: int, num_spans: int) -> Iterator[PackedPart]:
    draw = np.random.default_rng(0)
    for number in range(num_parts):
        inputs = draw.integers(1, LENGTH + 1, num_spans)
        yield PackedPart(10**12 * number + np.cumsum(inputs), inputs, pack(inputs, LENGTH))


def test_first_rank_of_a_node_packs_for_all(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing a corpus on every rank took 9 GB a rank for a corpus of C4's size."""
    packed: list[int] = []
    datasets: list[BestFitDataset] = []

    def counted(lengths: np.ndarray, capacity: int) -> Packing:
        packed.append(lengths.size)
        return pack(lengths, capacity)

    monkeypatch.setattr(best_fit_dataset, "pack", counted)
    ranks = [
        threading.Thread(target=lambda: datasets.append(BestFitDataset(StoredSplit(directory, "train"), LENGTH)))
        for _ in range(4)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=scaled(60))
    assert len(packed) == len(load_index(directory).splits["train"].shards) > 1
    first, *others = map(samples_of, datasets)
    assert len(others) == 3
    assert all(samples == first for samples in others)
    assert samples_of(BestFitDataset(StoredSplit(directory, "train"), LENGTH)) == first
    BestFitDataset(StoredSplit(directory, "train"), LENGTH + 1)
    BestFitDataset(StoredSplit(directory, "validation"), LENGTH)
    assert len(packed) == 3 * len(load_index(directory).splits["train"].shards)
    assert len(stored_files(directory)) == 3


def test_read_only_folder_packs_in_memory(directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same samples are kept in memory. With a cache, the file is next to the copies."""
    expected = BestFitDataset(StoredSplit(directory, "train"), LENGTH)
    (file,) = stored_files(directory)
    file.unlink()
    (directory / "packing.lock").mkdir()
    found = BestFitDataset(StoredSplit(directory, "train"), LENGTH)
    assert "every rank packs split train" in caplog.text
    assert not stored_files(directory)
    cached = BestFitDataset(StoredSplit(directory, "train", CacheFolder(tmp_path / "cache")), LENGTH)
    assert [path.name for path in stored_files(tmp_path / "cache")] == [file.name]
    for other in (found, cached):
        assert samples_of(other) == samples_of(expected)
        assert (other.filled, other.shard_samples.tolist()) == (expected.filled, expected.shard_samples.tolist())


def test_other_documents_have_another_file(directory: Path) -> None:
    """A changed folder does not read the samples of its earlier content."""

    def drop_first_shard(content: dict[str, Any]) -> None:
        split = content["splits"]["train"]
        first = split["shards"].pop(0)
        for name in ("tokens", "documents"):
            split[name] -= first[name]

    before = BestFitDataset(StoredSplit(directory, "train"), LENGTH)
    edit_index(directory, drop_first_shard)
    after = BestFitDataset(StoredSplit(directory, "train"), LENGTH)
    assert after.num_samples < before.num_samples
    assert len(stored_files(directory)) == 2


@pytest.mark.parametrize("part", [((10**9,), (3,)), ((0,), (LENGTH + 1,)), ((0, 0), (LENGTH, 1)), ((-5,), (3,)), ((0,), (0,))])
def test_hostile_file_is_refused(directory: Path, part: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """A downloaded folder may have a file with spans outside the split or the sample."""
    BestFitDataset(StoredSplit(directory, "train"), LENGTH)
    (file,) = stored_files(directory)
    identity = re.findall(rb'"identity": "([0-9a-f]{64})"', file.read_bytes())[0].decode()
    begins, inputs = map(np.array, part)
    store_arrangement(file, identity, [PackedPart(begins, inputs, Packing(np.arange(inputs.size), np.array([inputs.size])))])
    with pytest.raises(UserError, match="sample 0 of split train of .* has spans outside of"):
        BestFitDataset(StoredSplit(directory, "train"), LENGTH).sample(0)


def test_stored_samples_are_those_in_memory(tmp_path: Path) -> None:
    """Some spans and samples cross chunks of the file."""
    store_arrangement(tmp_path / "file", IDENTITY, parts(3, 5000))
    stored = StoredArrangement(tmp_path / "file", IDENTITY)
    memory = ArrangementInMemory(parts(3, 5000))
    assert stored.num_samples == memory.num_samples
    assert stored.num_inputs == memory.num_inputs
    assert stored.shard_samples.tolist() == memory.shard_samples.tolist()
    assert [stored.spans(sample) for sample in range(stored.num_samples)] == list(map(memory.spans, range(memory.num_samples)))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_stored_arrangement_needs_little_memory(tmp_path: Path) -> None:
    """A rank holds the checksums, not the samples. The writing rank holds one part at a time."""
    store_arrangement(tmp_path / "warm", IDENTITY, parts(1, 100))
    tracemalloc.start()
    try:
        store_arrangement(tmp_path / "file", IDENTITY, parts(20, 20_000))
        _, written = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        stored = StoredArrangement(tmp_path / "file", IDENTITY)
        stored.spans(1000)
        _, read = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = (tmp_path / "file").stat().st_size
    assert size > 12 * 400_000
    assert written < size
    assert read - before < size / 50


@pytest.mark.parametrize("place", [100, -9, -17, "samples", "checksums", "summary", "short"])
def test_corrupted_file_is_refused(tmp_path: Path, place: int | str) -> None:
    """Checksums cover each byte: spans, samples, checksums, summary and end."""
    path = tmp_path / "file"
    store_arrangement(path, IDENTITY, parts(2, 2000))
    size = path.stat().st_size
    if place == "short":
        path.write_bytes(path.read_bytes()[:-1])
    elif isinstance(place, int):
        flip(path, place % size)
    else:
        flip(path, {"samples": 12 * 4000 + 4096, "checksums": size - 500, "summary": size - 60}[place])
    with pytest.raises(UserError, match=f"{path}: corrupted, .*: remove it, and the next run writes it again"):
        arrangement = StoredArrangement(path, IDENTITY)
        for sample in range(arrangement.num_samples):
            arrangement.spans(sample)


def test_file_of_other_samples_is_refused(tmp_path: Path) -> None:
    store_arrangement(tmp_path / "file", IDENTITY, parts(2, 2000))
    with pytest.raises(UserError, match="file: corrupted, it belongs to other samples"):
        StoredArrangement(tmp_path / "file", "6" * 64)
