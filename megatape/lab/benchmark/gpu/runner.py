"""Runs the parts of a benchmark one after the other, each in processes of its own and within a time limit."""

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
from megatape.lab.benchmark.gpu.results import RESULTS, Journal, Key, Result, Results, measured, read_results
from megatape.lab.benchmark.gpu.worker import FULL, TINY
from megatape.lab.processes import child, ending, interruptible
from megatape.utils.atomic import write_atomically
from megatape.utils.python_process import python_command

LOGS = "logs"


@dataclass(frozen=True)
class Conditions:
    """Conditions of a benchmark.

    Attributes:
        device: "cuda" or "cpu".
        tiny: Whether to use sizes that a CPU runs in a second.
        time_limit: A part is stopped after this multiple of its expected time.
    """

    device: str
    tiny: bool
    time_limit: float = TIME_LIMIT

    @property
    def size(self) -> str:
        """Sizes to use, as an argument of the worker."""
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
    """Measure parts, and yield lines about the progress.

    Args:
        parts: Parts to measure.
        out: Folder for results.jsonl, which includes the earlier results, table.md, rewritten after every part, and logs/.
        conditions: Device, sizes and time limit.
        done: results.jsonl of an earlier benchmark. Its results are not measured again.
        budget: Seconds for the benchmark. A part that no longer fits is skipped.

    Raises:
        FileNotFoundError: There is no file `done`.
        UserError: `done` has no results, or `out` has results.
    """
    deadline = math.inf
    if budget is not None:
        deadline = time.monotonic() + budget
    earlier = {}
    if done is not None:
        earlier = {key: result for key, result in read_results(done).items() if measured(result)}
    (out / LOGS).mkdir(parents=True, exist_ok=True)
    results = out / RESULTS
    if done and results.exists() and done.samefile(results):
        done.rename(results.with_suffix(".earlier.jsonl"))
    journal = Journal(results, earlier)
    with interruptible():
        for part in parts:
            if measured(journal.results.get(Key(part.name))):
                yield f"{part.name}: measured before"
                continue
            left = deadline - time.monotonic()
            if part.seconds > left:
                reason = f"takes about {part.seconds} s, and {max(left, 0):.0f} s of the budget were left"
                result: Result = {"left out": reason}
            else:
                log = out / LOGS / f"{part.name.replace(' ', '_')}.txt"
                limit = min(conditions.time_limit * part.seconds, left)
                result = _PartRun(part, journal, log, limit, conditions).finish()
            journal.add(Key(part.name), result)
            write_atomically(out / TABLE, report(journal.results).encode())
            yield _progress(part, journal.results)


def _progress(part: Part, results: Results) -> str:
    """Describe the outcome of a part: the number of results, and the failures."""
    result = results[Key(part.name)]
    if "left out" in result:
        return f"{part.name}: left out: {result['left out']}"
    measurements = {key: result for key, result in results.items() if key.part == part.name and key.words}
    failures = [f"  {key}: {measurement['error']}" for key, measurement in measurements.items() if "error" in measurement]
    line = f"{part.name}: {len(measurements) - len(failures)} of {len(measurements)} measured"
    if "error" in result:
        line += f": {result['error']}"
    return "\n".join([line, *failures])


class _PartRun:
    """Measures a part, in as many processes as it takes.

    A process that dies fails the measurement that it has started, and the next process continues with the others.
    """

    def __init__(self, part: Part, journal: Journal, log: Path, limit: float, conditions: Conditions) -> None:
        """Start without results.

        Args:
            part: Part to measure.
            journal: Results of the benchmark.
            log: File for the output of the processes.
            limit: Seconds after which the part is stopped.
            conditions: Device and sizes.
        """
        self._part = part
        self._journal = journal
        self._log = log
        self._limit = limit
        self._conditions = conditions
        # Keys with a result of this run, which may be a failure.
        self._tried: set[Key] = set()
        # Key of the running measurement.
        self._running: Key | None = None

    def finish(self) -> Result:
        """Measure the part, and return its time and what went wrong."""
        started = time.monotonic()
        self._log.unlink(missing_ok=True)
        while True:
            remaining = self._limit - (time.monotonic() - started)
            status = self._run_process(remaining)
            seconds = time.monotonic() - started
            if status == 0:
                return self._outcome(seconds)
            is_expired = seconds >= self._limit
            if is_expired:
                fault = f"stopped after {self._limit:.0f} s"
            else:
                words = ending(self._log.read_text(errors="replace"))
                fault = f"its process ended with status {status}: {words}"
            # Another process would not get further, if this one has ended between two measurements for an unknown reason.
            is_last = is_expired or (self._running is None and status != LOST)
            if self._running is not None:
                self._add(self._running, {"error": fault})
            if is_last:
                return {"seconds": seconds, "error": fault}

    def _outcome(self, seconds: float) -> Result:
        result: Result = {"seconds": seconds}
        num_failures = sum("error" in self._journal.results[key] for key in self._tried)
        if num_failures:
            result["error"] = f"{num_failures} failed"
        return result

    def _run_process(self, seconds: float) -> int:
        """Run a process until it exits or the time is up. Returns its exit status."""
        part = self._part
        words = [self._conditions.device, self._conditions.size, part.name, part.module, *part.arguments]
        command = python_command("megatape.lab.benchmark.gpu.worker", *words)
        with self._log.open("a") as log, child(command, stdin=PIPE, stderr=log, limit=seconds) as process:
            assert process.stdin is not None and process.stdout is not None
            known = {key for key, result in self._journal.results.items() if measured(result)}
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(sorted(str(key) for key in self._tried | known)) + "\n")
                process.stdin.flush()
            for line in process.stdout:
                entry = json.loads(line)
                if "begin" in entry:
                    self._running = Key.parse(entry["begin"])
                else:
                    self._add(Key.parse(entry.pop("key")), entry)
            return process.wait()

    def _add(self, key: Key, result: Result) -> None:
        self._journal.add(key, result)
        self._tried.add(key)
        self._running = None
