"""Stored arrangements of samples: packed once per node, equal to those in memory, and verified when read."""

import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.shards.index import load_index
from megatape.data.shards.reading.cache import CacheFolder
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets import best_fit_dataset
from megatape.data.training.datasets.best_fit_dataset import BestFitDataset
from megatape.data.training.packing.arrangement import ArrangementInMemory, PackedPart
from megatape.data.training.packing.arrangement_writer import store_arrangement
from megatape.data.training.packing.best_fit import Packing, pack
from megatape.data.training.packing.stored_arrangement import StoredArrangement
from megatape.errors import UserError
from tests.helpers.data.data_directory import edit_index, flip
from tests.helpers.processes.threads import run_in_threads

LENGTH = 16
IDENTITY = "5" * 64


def open_dataset(
    directory: Path, length: int = LENGTH, split: str = "train", cache: CacheFolder | None = None
) -> BestFitDataset:
    return BestFitDataset(StoredSplit(directory, split, cache), length)


def all_samples(dataset: BestFitDataset) -> list[tuple[list[int], list[int]]]:
    """Return tokens and targets of every sample."""
    samples = []
    for index in range(dataset.num_samples):
        sample = dataset.sample(index)
        samples.append((sample.tokens.tolist(), sample.targets.tolist()))
    return samples


def stored_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("packing-*.bin"))


def packed_parts(num_parts: int, num_spans: int) -> Iterator[PackedPart]:
    """Yield parts of random spans, packed."""
    draw = np.random.default_rng(0)
    for number in range(num_parts):
        inputs = draw.integers(1, LENGTH + 1, num_spans)
        yield PackedPart(10**12 * number + np.cumsum(inputs), inputs, pack(inputs, LENGTH))


@pytest.fixture
def packed_shards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of spans in each shard packed so far."""
    packed: list[int] = []

    def count_and_pack(lengths: np.ndarray, capacity: int) -> Packing:
        packed.append(lengths.size)
        return pack(lengths, capacity)

    monkeypatch.setattr(best_fit_dataset, "pack", count_and_pack)
    return packed


def test_first_rank_of_a_node_packs_for_all(directory: Path, packed_shards: list[int]) -> None:
    """Packing a corpus on every rank took 9 GB per rank for a corpus as large as C4."""
    num_shards = len(load_index(directory).splits["train"].shards)
    datasets: list[BestFitDataset] = []
    run_in_threads(lambda: datasets.append(open_dataset(directory)), count=4, timeout=60)

    assert num_shards > 1
    assert len(packed_shards) == num_shards
    assert len(datasets) == 4
    expected = all_samples(datasets[0])
    for dataset in datasets[1:]:
        assert all_samples(dataset) == expected


def test_samples_are_packed_once_for_each_split_and_length(directory: Path, packed_shards: list[int]) -> None:
    num_shards = len(load_index(directory).splits["train"].shards)
    first = open_dataset(directory)
    again = open_dataset(directory)
    assert all_samples(again) == all_samples(first)
    assert len(packed_shards) == num_shards

    open_dataset(directory, LENGTH + 1)
    open_dataset(directory, split="validation")
    assert len(packed_shards) == 3 * num_shards
    assert len(stored_files(directory)) == 3


def check_same_samples(dataset: BestFitDataset, expected: BestFitDataset) -> None:
    assert all_samples(dataset) == all_samples(expected)
    assert dataset.filled == expected.filled
    assert dataset.shard_samples.tolist() == expected.shard_samples.tolist()


@pytest.fixture
def read_only(directory: Path) -> BestFitDataset:
    """Make the folder unwritable for arrangements. Return the dataset opened before, without its file."""
    dataset = open_dataset(directory)
    (file,) = stored_files(directory)
    file.unlink()
    (directory / "packing.lock").mkdir()
    return dataset


def test_samples_of_a_read_only_folder_are_packed_in_memory(
    directory: Path, read_only: BestFitDataset, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = open_dataset(directory)
    assert "every rank packs split train" in caplog.text
    assert not stored_files(directory)
    check_same_samples(dataset, read_only)


def test_samples_of_a_read_only_folder_are_stored_in_its_cache(
    directory: Path, read_only: BestFitDataset, tmp_path: Path
) -> None:
    dataset = open_dataset(directory, cache=CacheFolder(tmp_path / "cache"))
    assert len(stored_files(tmp_path / "cache")) == 1
    check_same_samples(dataset, read_only)


def test_changed_documents_have_another_file(directory: Path) -> None:
    """A changed folder does not read the samples of its earlier content."""

    def drop_first_shard(content: dict[str, Any]) -> None:
        split = content["splits"]["train"]
        first = split["shards"].pop(0)
        for name in ("tokens", "documents"):
            split[name] -= first[name]

    before = open_dataset(directory)
    edit_index(directory, drop_first_shard)
    after = open_dataset(directory)
    assert after.num_samples < before.num_samples
    assert len(stored_files(directory)) == 2


@pytest.mark.parametrize(
    ("begins", "inputs"),
    [
        ([10**9], [3]),
        ([0], [LENGTH + 1]),
        ([0, 0], [LENGTH, 1]),
        ([-5], [3]),
        ([0], [0]),
    ],
    ids=["beyond the split", "long span", "long sample", "before the split", "empty span"],
)
def test_spans_outside_the_split_or_the_sample_are_refused(directory: Path, begins: list[int], inputs: list[int]) -> None:
    """A downloaded folder may contain a hostile file."""
    open_dataset(directory)
    (file,) = stored_files(directory)
    identity = re.findall(rb'"identity": "([0-9a-f]{64})"', file.read_bytes())[0].decode()
    one_sample = Packing(np.arange(len(inputs)), np.array([len(inputs)]))
    store_arrangement(file, identity, [PackedPart(np.array(begins), np.array(inputs), one_sample)])
    with pytest.raises(UserError, match="sample 0 of split train of .* has spans outside of"):
        open_dataset(directory).sample(0)


def test_stored_samples_are_those_in_memory(tmp_path: Path) -> None:
    """The file has several chunks, and some spans and samples cross them."""
    store_arrangement(tmp_path / "file", IDENTITY, packed_parts(3, 5000))
    stored = StoredArrangement(tmp_path / "file", IDENTITY)
    memory = ArrangementInMemory(packed_parts(3, 5000))
    assert stored.num_samples == memory.num_samples
    assert stored.num_inputs == memory.num_inputs
    assert stored.shard_samples.tolist() == memory.shard_samples.tolist()
    for sample in range(memory.num_samples):
        assert stored.spans(sample) == memory.spans(sample)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_stored_arrangement_needs_little_memory(tmp_path: Path) -> None:
    """A rank holds the checksums, not the samples. The writing rank holds one part at a time."""
    store_arrangement(tmp_path / "warm", IDENTITY, packed_parts(1, 100))
    tracemalloc.start()
    try:
        store_arrangement(tmp_path / "file", IDENTITY, packed_parts(20, 20_000))
        _, peak_writing = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        stored = StoredArrangement(tmp_path / "file", IDENTITY)
        stored.spans(1000)
        _, peak_reading = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = (tmp_path / "file").stat().st_size
    assert size > 12 * 400_000
    assert peak_writing < size
    assert peak_reading - before < size / 50


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A stored arrangement of 4,000 spans."""
    path = tmp_path / "file"
    store_arrangement(path, IDENTITY, packed_parts(2, 2000))
    return path


def check_corrupted(file: Path) -> None:
    with pytest.raises(UserError, match=f"{file}: corrupted, .*: remove it, and the next run writes it again"):
        arrangement = StoredArrangement(file, IDENTITY)
        for sample in range(arrangement.num_samples):
            arrangement.spans(sample)


@pytest.mark.parametrize(
    "offset",
    [100, 12 * 4000 + 4096, -500, -60, -9, -17],
    ids=["spans", "samples", "checksums", "summary", "end", "before the end"],
)
def test_a_flipped_byte_is_refused(file: Path, offset: int) -> None:
    """Checksums cover each byte: spans, samples, checksums, summary and end."""
    flip(file, offset)
    check_corrupted(file)


def test_a_truncated_file_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])
    check_corrupted(file)


def test_a_file_of_other_samples_is_refused(file: Path) -> None:
    with pytest.raises(UserError, match="file: corrupted, it belongs to other samples"):
        StoredArrangement(file, "6" * 64)
