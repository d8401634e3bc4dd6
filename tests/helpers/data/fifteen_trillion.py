"""Forged metadata for 15 trillion tokens, and functions reading them, each in its own process."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from megatape.data.document_entries import INDEX_FILE
from megatape.data.prepare.queue.task import WHOLE
from megatape.data.prepare.queue.work_queue import Step, WorkQueue
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.plan import Plan
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS, UnitLease
from megatape.data.shards.entries import Index, Shard, Split, TokenizerEntry
from megatape.data.shards.index import FORMAT, VERSION
from megatape.data.shards.index_formats.index_columns import save_columns
from megatape.data.shards.layout import shard_bytes
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.sources.units import Unit
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.mixing.order import WindowOrder

NUM_UNITS = 700_000
NUM_SHARDS = 2 * NUM_UNITS
SHARD_TOKENS = 10_700_000
SHARD_DOCUMENTS = 10_000
MEMBER_TOKENS = 2**19
TOKENIZER = TokenizerEntry("tokenizer.json", "a" * 64, 128_256, 1, 2)
SEQUENCE_LENGTH = 4096
WINDOW = 64
# Units chosen while simulating a worker
NUM_CHOSEN = 1000


def forge_index(directory: Path) -> None:
    """Write an index listing 1.4 million shards, none of which exists."""
    splits = {"train": _split("train", NUM_SHARDS), "validation": _split("validation", 1)}
    index = Index(TOKENIZER, "uint32", {}, 0.01, splits)
    encoded_splits = {}
    for name, split in splits.items():
        shards = [vars(shard) for shard in split.shards]
        encoded_splits[name] = {**vars(split), "shards": shards}
    content = {"format": FORMAT, "version": VERSION, **vars(index), "tokenizer": vars(TOKENIZER), "splits": encoded_splits}
    encoded = json.dumps(content).encode()
    directory.mkdir()
    (directory / INDEX_FILE).write_bytes(encoded)
    save_columns(index, directory, encoded)


def _split(name: str, num_shards: int) -> Split:
    num_bytes = shard_bytes(SHARD_TOKENS, MEMBER_TOKENS, 4)
    shards = []
    for number in range(num_shards):
        file = f"{name}-{number // 2:06d}-{number % 2:06d}.tar"
        shards.append(Shard(file, num_bytes, SHARD_TOKENS, SHARD_DOCUMENTS, MEMBER_TOKENS, f"{number:064x}"))
    num_documents = num_shards * SHARD_DOCUMENTS
    return Split(num_documents, num_shards * SHARD_TOKENS, 4 * num_shards * SHARD_TOKENS, 7.0, shards)


def forge_units() -> list[Unit]:
    units = []
    for number in range(NUM_UNITS):
        name = f"s3://bucket/crawl/CC-MAIN-2024-{number // 8000:02d}/part-{number:06d}.jsonl.zst"
        units.append(Unit((name,), 80_000_000, versions=(f"80000000-{number * 7919:x}",)))
    return units


def forged_plan(units: list[Unit]) -> Plan:
    return Plan({"kind": "jsonl"}, units, 0.01, TOKENIZER, None, True, [])


def _begin(folder: PartialFolder, units: list[Unit]) -> dict[str, Any]:
    """Store the plan as the first process does."""
    units_path = folder.path / "units"
    units_path.mkdir(parents=True)
    folder.store_plan(forged_plan(units), _NoTokenizer())  # type: ignore[arg-type]  # only its files are stored
    return {}


class _NoTokenizer:
    files: ClassVar[dict[str, bytes]] = {}


def _read_plan(folder: PartialFolder) -> dict[str, Any]:
    """Read the plan, and one unit in it, as a worker does."""
    plan = folder.plan()
    assert plan is not None
    assert len(plan.units) == NUM_UNITS
    assert plan.units[NUM_UNITS - 1].num_bytes == 80_000_000
    return {}


class _Chosen(Exception):
    """Raised after NUM_CHOSEN units."""


def _choose(folder: PartialFolder) -> dict[str, Any]:
    """Choose and finish units without content."""
    num_listings = 0
    num_chosen = 0
    first_seconds = 0.0
    start = time.process_time()

    def count(event: str, arguments: object) -> None:
        nonlocal num_listings
        num_listings += event in ("os.listdir", "os.scandir")

    def work(number: int, lease: UnitLease) -> None:
        nonlocal num_chosen, first_seconds
        folder.unit_folder(number).mkdir()
        num_chosen += 1
        if num_chosen == 1:
            first_seconds = time.process_time() - start
        if num_chosen > NUM_CHOSEN:
            raise _Chosen

    sys.addaudithook(count)
    queue = WorkQueue(folder.leases, WHOLE, print)
    step = Step(None, NUM_UNITS, lambda: folder.finished(NUM_UNITS), folder.is_finished, work)
    try:
        for _ in queue.run(step):
            raise AssertionError("nobody else is working")
    except _Chosen:
        pass
    per_unit = (time.process_time() - start - first_seconds) / NUM_CHOSEN
    return {"num_listings": num_listings, "first_seconds": first_seconds, "seconds_per_unit": per_unit}


def _open(directory: Path) -> dict[str, Any]:
    """Open the data, and find the first sample after a resume, as a rank does."""
    split = StoredSplit(directory, "train")
    dataset = TokenDataset(split, SEQUENCE_LENGTH, window=WINDOW)
    order = WindowOrder("", dataset.shard_samples, WINDOW, seed=1)
    location = order.locate(10_000_000)
    assert 0 <= location.sample_index < dataset.num_samples
    assert split.shards[NUM_SHARDS - 1].sha256 == f"{NUM_SHARDS - 1:064x}"
    return {}


def main(part: str, root: Path) -> None:
    """Run a part, and print its cost: processor seconds, megabytes beyond those before, and what it returns."""
    folder = PartialFolder(root / "out", DEFAULT_TIMEOUTS)
    units = []
    if part == "begin":
        units = forge_units()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "begin": lambda: _begin(folder, units),
        "plan": lambda: _read_plan(folder),
        "choose": lambda: _choose(folder),
        "open": lambda: _open(root / "data"),
    }
    before = _peak_megabytes()
    start = time.process_time()
    result = parts[part]()
    cost = {"seconds": time.process_time() - start, "megabytes": _peak_megabytes() - before}
    print(json.dumps(cost | result))


def _peak_megabytes() -> float:
    # getrusage's peak begins with the parent's memory.
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
