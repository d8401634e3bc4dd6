"""Runs parts one after the other, each in worker processes with a time limit."""

import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from megatape.lab.benchmark.figures.measurement import Seconds
from megatape.lab.benchmark.gpu.bench import LOST
from megatape.lab.benchmark.gpu.registry import TIME_LIMIT, BenchmarkPart
from megatape.lab.benchmark.gpu.report import TABLE, report
from megatape.lab.benchmark.gpu.results import (
    RESULTS,
    BenchmarkResult,
    ResultKey,
    ResultLine,
    Results,
    ResultsFile,
    read_results,
)
from megatape.lab.benchmark.gpu.worker import FULL, TINY
from megatape.lab.processes import child, ending, interruptible
from megatape.utils.files.atomic import write_atomically
from megatape.utils.processes.python_process import python_command
from megatape.utils.text.paragraphs import Show

LOGS = "logs"


@dataclass(frozen=True)
class BenchmarkConditions:
    """Conditions of a benchmark: device, sizes and time limit.

    Attributes:
        device: "cuda" or "cpu".
        tiny: Whether to use sizes that a CPU runs in a second.
        time_limit: Maximum duration of a part, as a multiple of its expected seconds.
    """

    device: str
    tiny: bool
    time_limit: float = TIME_LIMIT

    @property
    def size(self) -> str:
        """Worker argument."""
        if self.tiny:
            return TINY
        return FULL


def benchmark(
    parts: Sequence[BenchmarkPart],
    output: Path,
    conditions: BenchmarkConditions,
    show: Show,
    done: Path | None = None,
    budget: float | None = None,
) -> None:
    """Measure parts.

    Args:
        parts: Parts to measure.
        output: Output folder for results.jsonl (with earlier results), table.md (rewritten after every part) and logs/.
        conditions: Device, sizes and time limit.
        show: Called with a line about each part.
        done: Earlier results.jsonl. Only what failed or is missing there is measured.
        budget: Seconds for all parts. Parts that no longer fit are skipped.

    Raises:
        FileNotFoundError: `done` is missing.
        UserError: `done` has no results, or `output` has some.
    """
    if budget is not None:
        deadline = time.monotonic() + budget
    else:
        deadline = math.inf
    results_file = _open_results(output, done)
    with interruptible():
        for part in parts:
            part_result = results_file.results.get(ResultKey(part.name))
            if part_result is not None and part_result.is_measured:
                show(f"{part.name}: measured before")
                continue
            result = _run_part(part, results_file, output / LOGS, conditions, deadline - time.monotonic())
            results_file.add(ResultKey(part.name), result)
            write_atomically(output / TABLE, report(results_file.results).encode())
            show(_progress(part, results_file.results))


def _run_part(
    part: BenchmarkPart, results_file: ResultsFile, logs: Path, conditions: BenchmarkConditions, remaining: float
) -> BenchmarkResult:
    """Run a part unless it takes more than the remaining seconds."""
    if part.seconds > remaining:
        reason = f"takes about {part.seconds} s, and {max(remaining, 0):.0f} s of the budget were left"
        return BenchmarkResult(left_out=reason)
    log = logs / f"{part.name.replace(' ', '_')}.txt"
    max_seconds = min(conditions.time_limit * part.seconds, remaining)
    return _PartRun(part, results_file, log, max_seconds, conditions).finish()


def _open_results(output: Path, done: Path | None) -> ResultsFile:
    """Create the output folder, and start results.jsonl with what an earlier benchmark has measured."""
    earlier: Results = {}
    if done is not None:
        earlier = {key: result for key, result in read_results(done).items() if result.is_measured}
    (output / LOGS).mkdir(parents=True, exist_ok=True)
    results = output / RESULTS
    if done and results.exists() and done.samefile(results):
        done.rename(results.with_suffix(".earlier.jsonl"))
    return ResultsFile(results, earlier)


def _progress(part: BenchmarkPart, results: Results) -> str:
    part_result = results[ResultKey(part.name)]
    if part_result.left_out is not None:
        return f"{part.name}: {part_result.reason}"
    cases = {key: result for key, result in results.items() if key.part == part.name and key.case}
    failures = [f"  {key}: {result.error}" for key, result in cases.items() if result.error is not None]
    line = f"{part.name}: {len(cases) - len(failures)} of {len(cases)} measured"
    if part_result.error is not None:
        line += f": {part_result.error}"
    return "\n".join([line, *failures])


class _PartRun:
    """Measures a part in as many processes as it takes.

    If a process dies, its current measurement fails, and the next process continues with the others.
    """

    def __init__(
        self, part: BenchmarkPart, results_file: ResultsFile, log: Path, max_seconds: float, conditions: BenchmarkConditions
    ) -> None:
        self._part = part
        self._results_file = results_file
        self._log = log
        self._max_seconds = max_seconds
        self._conditions = conditions
        # Keys measured in this run, successfully or not.
        self._tried: set[ResultKey] = set()
        self._running: ResultKey | None = None

    def finish(self) -> BenchmarkResult:
        """Measure the part. Returns its duration, with a reason if something failed."""
        started = time.monotonic()
        self._log.unlink(missing_ok=True)
        while True:
            remaining = self._max_seconds - (time.monotonic() - started)
            status = self._run_process(remaining)
            seconds = time.monotonic() - started
            if status == 0:
                return self._part_result(seconds, self._failures())
            is_expired = seconds >= self._max_seconds
            if is_expired:
                reason = f"stopped after {self._max_seconds:.0f} s"
            else:
                last_lines = ending(self._log.read_text(errors="replace"))
                reason = f"its process ended with status {status}: {last_lines}"
            # A process that ended between two measurements for an unknown reason would do so again.
            is_last = is_expired or (self._running is None and status != LOST)
            if self._running is not None:
                self._add(self._running, BenchmarkResult(error=reason))
            if is_last:
                return self._part_result(seconds, reason)

    def _part_result(self, seconds: float, reason: str | None) -> BenchmarkResult:
        return BenchmarkResult(Seconds(seconds=seconds).to_json(), error=reason)

    def _failures(self) -> str | None:
        """Return how many measurements failed, None without any."""
        num_failures = sum(self._results_file.results[key].error is not None for key in self._tried)
        if not num_failures:
            return None
        return f"{num_failures} failed"

    def _run_process(self, seconds: float) -> int:
        """Run a process until it exits or the time is up. Returns its exit status."""
        part = self._part
        words = [self._conditions.device, self._conditions.size, part.name, part.module, *part.arguments]
        command = python_command("megatape.lab.benchmark.gpu.worker", *words)
        with self._log.open("a") as log, child(command, stdin=PIPE, stderr=log, limit=seconds) as process:
            assert process.stdin is not None and process.stdout is not None
            measured = {key for key, result in self._results_file.results.items() if result.is_measured}
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(sorted(str(key) for key in self._tried | measured)) + "\n")
                process.stdin.flush()
            for text in process.stdout:
                line = json.loads(text)
                if "begin" in line:
                    self._running = ResultKey.parse(line["begin"])
                else:
                    self._add(*ResultLine.parse(line))
            return process.wait()

    def _add(self, key: ResultKey, result: BenchmarkResult) -> None:
        self._results_file.add(key, result)
        self._tried.add(key)
        self._running = None
