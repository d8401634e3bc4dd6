"""A corpus of C4's shape, 156 billion tokens in 3,072 shards: bytes read for a sample, and how long a rank takes to start.

The shards are empty files of the right sizes, so nothing in them is read: `ShardFile.read` gives zeros and their checksums.
"""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megatape.config.sections.data import DataConfig
from megatape.data.shards import layout
from megatape.data.shards.entries import Index, Shard, Split, TokenizerEntry
from megatape.data.shards.index import save_index
from megatape.data.shards.reading.shard_file import ShardFile
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.writer import MEMBER_TOKENS
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.mixing.mixture import Mixture
from tests.helpers.processes.load import scaled

SHARDS = 3072
MEMBERS = 97
TOKENS = MEMBERS * MEMBER_TOKENS
COVERED = layout.covered_bytes(TOKENS, MEMBER_TOKENS, 2)
NUM_SAMPLES = 200  # read by one rank

# Prints the processor time in seconds and the memory in MB for opening both splits
START = """
import resource, sys, time
from pathlib import Path
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.token_dataset import TokenDataset
import pydantic, torch

def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = memory()
started = time.process_time()
splits = [TokenDataset(StoredSplit(Path(sys.argv[1]), split), 2048) for split in ("train", "validation")]
print(time.process_time() - started, (memory() - before) / 1024)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("c4")
    num_chunks = math.ceil(COVERED / layout.CHUNK_BYTES)
    size = COVERED + layout.TAR_BLOCK_BYTES + num_chunks * layout.CHECKSUM_BYTES + 1024
    splits = {}
    for split, count in (("train", SHARDS), ("validation", 3)):
        shards = []
        for number in range(count):
            name = f"{split}-{number:05d}-000000.tar"
            shards.append(Shard(name, size, TOKENS, 10**5, MEMBER_TOKENS, f"{number:064x}"))
            with (folder / name).open("wb") as file:
                file.truncate(size)
        splits[split] = Split(count * 10**5, count * TOKENS, 10**9, 7.0, shards)
    entry = TokenizerEntry("tokenizer.model", "0" * 64, 32_000, 1, 2)
    save_index(Index(entry, "uint16", {"kind": "test"}, 0.01, splits), folder)
    return folder


@pytest.mark.parametrize(("length", "max_amplification"), [(1024, 4.0), (4096, 1.6), (32_768, 1.2)])
@pytest.mark.parametrize("num_ranks", [8, 64, 512])
def test_a_rank_reads_little_more_than_its_samples(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, length: int, max_amplification: float, num_ranks: int
) -> None:
    """Hashing a member of 1 MiB for its first sample took 9, 63 and 198 times the bytes needed.

    All reads count: those of ids, those of checksums, and those for opening.
    """
    num_bytes = 0

    def read(file: ShardFile, offset: int, size: int) -> bytes:
        nonlocal num_bytes
        num_bytes += size
        if offset < COVERED:
            return bytes(size)
        first_chunk = (offset - COVERED - layout.TAR_BLOCK_BYTES) // layout.CHECKSUM_BYTES
        num_chunks = size // layout.CHECKSUM_BYTES
        first = first_chunk * layout.CHUNK_BYTES
        zeros = bytes(min(num_chunks * layout.CHUNK_BYTES, COVERED - first))
        shard = int(file.path.name.split("-")[1])
        return layout.checksums(zeros, f"{shard:064x}")

    monkeypatch.setattr(ShardFile, "read", read)
    config = DataConfig(path=str(corpus), sequence_length=length)
    data = Mixture(config, {"": TokenDataset(StoredSplit(corpus, "train"), length)}, 1)
    rank = num_ranks // 2
    for position in range(rank, num_ranks * NUM_SAMPLES, num_ranks):
        assert not np.any(data.sample(position).tokens)

    amplification = num_bytes / (NUM_SAMPLES * 2 * (length + 1))
    print(f"{num_ranks} ranks, {length} tokens per sample: {amplification:.3f} times the bytes needed")
    assert amplification <= max_amplification


def test_a_rank_starts_at_once(corpus: Path) -> None:
    """Members as objects of the index took 5.7 seconds and 0.4 GB. The bounds are five times what was seen."""
    command = [sys.executable, "-c", START, str(corpus)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=scaled(120), check=True)

    seconds, megabytes = (float(word) for word in run.stdout.split())
    print(f"{seconds:.2f} processor seconds, {megabytes:.0f} MB for both splits")
    assert seconds <= 0.5
    assert megabytes <= 50
    assert (corpus / "index.json").stat().st_size < 2**20
