"""Speed of finding exact duplicates among forged hashes, compared with sorting the same hashes in memory.

Files of sorted hashes are forged, as the first pass over each unit would write them. Then processes share the decision pass.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.first_pass import KEYS
from megatape.data.cleaning.stored.sorted_keys import pack_columns
from megatape.data.prepare.passes.decision_pass import DecisionPass
from megatape.data.prepare.queue.task import WHOLE
from megatape.data.prepare.queue.work_queue import WorkQueue
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.utils.text.tables import markdown
from megatape.utils.text.units import format_bytes
from megatape.utils.values.rounding import divide_up

# Documents in a unit of 64 MiB of web text.
UNIT_HASHES = 20_000
# Share of documents that equal an earlier one, in sixteenths.
DUPLICATE_SIXTEENTHS = 5
# Every document with such a number is distinct, and duplicates equal one of them.
ORIGINAL_STEP = 16


@dataclass(frozen=True)
class ProcessCost:
    """Cost of a measured process, without its start.

    Attributes:
        seconds: Elapsed seconds.
        cpu_seconds: Processor seconds of all threads.
        peak_bytes: Largest resident memory, with Python and numpy.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class DuplicatesResult:
    """Measured costs.

    Attributes:
        num_hashes: Number of hashes.
        num_duplicates: Duplicates among them.
        num_found: Duplicates that were found.
        workers: Cost of each process of the decision pass.
        sorting: Cost of sorting the first halves of all hashes in one process.
    """

    num_hashes: int
    num_duplicates: int
    num_found: int
    workers: list[ProcessCost]
    sorting: ProcessCost


def report(num_hashes: int, num_workers: int, memory_bytes: int) -> Iterator[str]:
    """Measure, yielding paragraphs. Arguments are those of `measure`."""
    result = measure(num_hashes, num_workers, memory_bytes)
    yield (
        f"{result.num_hashes:,} hashes, {result.num_duplicates:,} of them duplicates, {result.num_found:,} found; "
        f"comparison_bytes {format_bytes(memory_bytes)}"
    )
    yield table(result)


def table(result: DuplicatesResult) -> str:
    """Return a table of both ways."""
    cpu_seconds = sum(cost.cpu_seconds for cost in result.workers)
    elapsed = max(cost.seconds for cost in result.workers)
    peak_bytes = max(cost.peak_bytes for cost in result.workers)
    sorting = result.sorting
    ratio = cpu_seconds / sorting.cpu_seconds
    rows = [
        [f"decision pass, {len(result.workers)} processes", *_cells(elapsed, cpu_seconds, peak_bytes), f"{ratio:.1f}"],
        ["numpy.sort in memory", *_cells(sorting.seconds, sorting.cpu_seconds, sorting.peak_bytes), "1"],
    ]
    return markdown(["way", "seconds", "processor seconds", "memory of a process", "ratio of processor seconds"], rows)


def _cells(seconds: float, cpu_seconds: float, peak_bytes: int) -> list[str]:
    return [f"{seconds:.1f}", f"{cpu_seconds:.1f}", format_bytes(peak_bytes)]


def measure(num_hashes: int, num_workers: int, memory_bytes: int) -> DuplicatesResult:
    """Find the duplicates among forged hashes, and sort the same hashes.

    Args:
        num_hashes: Number of hashes.
        num_workers: Processes that share the comparison.
        memory_bytes: Memory of each for a comparison.
    """
    with tempfile.TemporaryDirectory(prefix="megatape-") as name:
        output = Path(name) / "out"
        folder = PartialFolder(output, DEFAULT_TIMEOUTS)
        folder.create()
        num_duplicates = forge(folder, num_hashes)
        num_units = divide_up(num_hashes, UNIT_HASHES)
        # Each process measures itself, so it is a new one.
        context = get_context("spawn")
        with ProcessPoolExecutor(num_workers, context) as pool:
            tasks = [pool.submit(_decide, output, num_units, memory_bytes) for _ in range(num_workers)]
            workers = [task.result() for task in tasks]
        with ProcessPoolExecutor(1, context) as pool:
            sorting = pool.submit(_sort, num_hashes).result()
        decisions = DecisionPass(Cleaning(), folder, num_units, memory_bytes)
        num_found = sum(decisions.dropped_rows(number)[0].size for number in range(num_units))
    return DuplicatesResult(num_hashes, num_duplicates, num_found, workers, sorting)


def forge(folder: PartialFolder, num_hashes: int) -> int:
    """Write the sorted hashes of all units. Returns the number of duplicates."""
    num_duplicates = 0
    for unit, first in enumerate(range(0, num_hashes, UNIT_HASHES)):
        numbers = _originals(first, min(first + UNIT_HASHES, num_hashes))
        num_duplicates += int((numbers != np.arange(first, first + numbers.size, dtype=np.uint64)).sum())
        path = folder.first_pass(unit)
        path.mkdir()
        hashes = np.stack([_mixed(numbers), _mixed(~numbers)], axis=1)
        (path / KEYS).write_bytes(pack_columns([hashes]))
    return num_duplicates


def _originals(first: int, end: int) -> np.ndarray:
    """Return the number of the earlier document that each document equals, or its own number, uint64."""
    numbers = np.arange(first, end, dtype=np.uint64)
    draws = _mixed(numbers + np.uint64(2**40))
    is_original = (numbers % np.uint64(ORIGINAL_STEP) == 0) | (draws % np.uint64(16) >= np.uint64(DUPLICATE_SIXTEENTHS))
    originals = (draws >> np.uint64(8)) % (numbers // np.uint64(ORIGINAL_STEP) + np.uint64(1)) * np.uint64(ORIGINAL_STEP)
    return np.where(is_original, numbers, originals)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return pseudorandom uint64, different for different numbers (the finalizer of SplitMix64)."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _decide(output: Path, num_units: int, memory_bytes: int) -> ProcessCost:
    """Run the decision pass together with other processes."""
    start = _Clock()
    folder = PartialFolder(output, DEFAULT_TIMEOUTS)
    queue = WorkQueue(folder.leases, WHOLE, print)
    decisions = DecisionPass(Cleaning(), folder, num_units, memory_bytes)
    for pause in queue.run(decisions.division()):
        time.sleep(pause)
    for step in decisions.later_steps():
        for pause in queue.run(step):
            time.sleep(pause)
    return start.cost()


def _sort(num_hashes: int) -> ProcessCost:
    hashes = np.empty(num_hashes, np.uint64)
    for first in range(0, num_hashes, UNIT_HASHES):
        end = min(first + UNIT_HASHES, num_hashes)
        hashes[first:end] = _mixed(_originals(first, end))
    start = _Clock()
    hashes.sort()
    return start.cost()


class _Clock:
    """Measures the cost of this process from now on."""

    def __init__(self) -> None:
        self._elapsed = time.monotonic()
        self._cpu = time.process_time()

    def cost(self) -> ProcessCost:
        return ProcessCost(time.monotonic() - self._elapsed, time.process_time() - self._cpu, _peak_bytes())


def _peak_bytes() -> int:
    """Return the largest resident memory of this process. On Linux, the peak of getrusage begins with the parent's memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
