"""Runs parts one after the other, each in worker processes with a time limit."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from megatape.lab.benchmark.gpu.bench import LOST
from megatape.lab.benchmark.gpu.parts import TIME_LIMIT, Part
from megatape.lab.benchmark.gpu.report import TABLE, report
from megatape.lab.benchmark.gpu.results import RESULTS, Entry, Journal, Key, Result, Results, Seconds, read_results
from megatape.lab.benchmark.gpu.worker import FULL, TINY
from megatape.lab.processes import child, ending, interruptible
from megatape.utils.atomic import write_atomically
from megatape.utils.python_process import python_command

LOGS = "logs"


@dataclass(frozen=True)
class Conditions:
    """How to run a benchmark.

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
    parts: Sequence[Part],
    out: Path,
    conditions: Conditions,
    done: Path | None = None,
    budget: float | None = None,
) -> Iterator[str]:
    """Measure parts, yielding lines about the progress.

    Args:
        parts: Parts to measure.
        out: Output folder for results.jsonl (with earlier results), table.md (rewritten after every part) and logs/.
        conditions: Device, sizes and time limit.
        done: Earlier results.jsonl. Only what failed or is missing there is measured.
        budget: Seconds for all parts. Parts that no longer fit are skipped.

    Raises:
        FileNotFoundError: `done` is missing.
        UserError: `done` has no results, or `out` has some.
    """
    deadline = math.inf
    if budget is not None:
        deadline = time.monotonic() + budget
    journal = _open_journal(out, done)
    with interruptible():
        for part in parts:
            part_result = journal.results.get(Key(part.name))
            if part_result is not None and part_result.is_measured:
                yield f"{part.name}: measured before"
                continue
            result = _run_part(part, journal, out / LOGS, conditions, deadline - time.monotonic())
            journal.add(Key(part.name), result)
            write_atomically(out / TABLE, report(journal.results).encode())
            yield _progress(part, journal.results)


def _run_part(part: Part, journal: Journal, logs: Path, conditions: Conditions, remaining: float) -> Result:
    """Run a part unless it takes more than the remaining seconds."""
    if part.seconds > remaining:
        reason = f"takes about {part.seconds} s, and {max(remaining, 0):.0f} s of the budget were left"
        return Result(left_out=reason)
    log = logs / f"{part.name.replace(' ', '_')}.txt"
    max_seconds = min(conditions.time_limit * part.seconds, remaining)
    return _PartRun(part, journal, log, max_seconds, conditions).finish()


def _open_journal(out: Path, done: Path | None) -> Journal:
    """Create the output folder, and start results.jsonl with what an earlier benchmark has measured."""
    earlier: Results = {}
    if done is not None:
        earlier = {key: result for key, result in read_results(done).items() if result.is_measured}
    (out / LOGS).mkdir(parents=True, exist_ok=True)
    results = out / RESULTS
    if done and results.exists() and done.samefile(results):
        done.rename(results.with_suffix(".earlier.jsonl"))
    return Journal(results, earlier)


def _progress(part: Part, results: Results) -> str:
    part_result = results[Key(part.name)]
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

    def __init__(self, part: Part, journal: Journal, log: Path, max_seconds: float, conditions: Conditions) -> None:
        self._part = part
        self._journal = journal
        self._log = log
        self._max_seconds = max_seconds
        self._conditions = conditions
        # Keys measured in this run, successfully or not.
        self._tried: set[Key] = set()
        self._running: Key | None = None

    def finish(self) -> Result:
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
                self._add(self._running, Result(error=reason))
            if is_last:
                return self._part_result(seconds, reason)

    def _part_result(self, seconds: float, reason: str | None) -> Result:
        return Result(Seconds(seconds=seconds).to_json(), error=reason)

    def _failures(self) -> str | None:
        """Return how many measurements failed, None without any."""
        num_failures = sum(self._journal.results[key].error is not None for key in self._tried)
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
            measured = {key for key, result in self._journal.results.items() if result.is_measured}
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(sorted(str(key) for key in self._tried | measured)) + "\n")
                process.stdin.flush()
            for text in process.stdout:
                line = json.loads(text)
                if "begin" in line:
                    self._running = Key.parse(line["begin"])
                else:
                    self._add(*Entry.parse(line))
            return process.wait()

    def _add(self, key: Key, result: Result) -> None:
        self._journal.add(key, result)
        self._tried.add(key)
        self._running = None
