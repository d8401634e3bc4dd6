"""Runs the parts of a benchmark one after the other, each in processes of its own and within a time limit."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE

from megatape.lab.benchmark.parts import LIMIT, Part
from megatape.lab.benchmark.results import RESULTS, Journal, Result, measured, read_results, report
from megatape.lab.benchmark.worker import LOST, TINY
from megatape.lab.processes import child, ending, interruptible
from megatape.utils.files import write_atomically
from megatape.utils.python_process import python_command

TABLE = "table.md"
LOGS = "logs"


def benchmark(
    parts: Sequence[Part], out: Path, done: Path | None, budget: float | None, device: str, tiny: bool
) -> Iterator[str]:
    """Measure what `done`, the results.jsonl of an earlier benchmark, does not hold; yields lines about the progress.

    budget: seconds after which the benchmark ends; a part that no longer fits is left out. The folder `out` gets results.jsonl,
    with the earlier results too, table.md, made again after every part, and logs/. Raises FileNotFoundError or
    UserError.
    """
    deadline = time.monotonic() + budget if budget is not None else float("inf")
    known = {key: result for key, result in read_results(done).items() if measured(result)} if done else {}
    (out / LOGS).mkdir(parents=True, exist_ok=True)
    results = out / RESULTS
    if done and results.exists() and done.samefile(results):
        done.rename(results.with_suffix(".earlier.jsonl"))
    journal = Journal(results, known)
    with interruptible():
        for part in parts:
            if measured(journal.results.get(part.name)):
                yield f"{part.name}: measured before"
                continue
            left = deadline - time.monotonic()
            if part.seconds > left:
                result: Result = {"left out": f"takes about {part.seconds} s, and {max(left, 0):.0f} s of the budget were left"}
            else:
                log = out / LOGS / f"{part.name.replace(' ', '_')}.txt"
                result = _Run(part, journal, log, min(LIMIT * part.seconds, left), device, tiny).finish()
            journal.add(part.name, result)
            write_atomically(out / TABLE, report(journal.results).encode())
            yield _progress(part, journal)


def _progress(part: Part, journal: Journal) -> str:
    result = journal.results[part.name]
    if "left out" in result:
        return f"{part.name}: left out: {result['left out']}"
    of_part = {key: found for key, found in journal.results.items() if key.startswith(f"{part.name}/")}
    failures = [f"  {key}: {found['error']}" for key, found in of_part.items() if "error" in found]
    head = f"{part.name}: {len(of_part) - len(failures)} of {len(of_part)} measured"
    return "\n".join([f"{head}: {result['error']}" if "error" in result else head, *failures])


@dataclass
class _Run:
    """A part that is measured. limit: seconds."""

    part: Part
    journal: Journal
    log: Path
    limit: float
    device: str
    tiny: bool
    tried: set[str] = field(default_factory=set)  # keys that have a result of this run, a failure perhaps
    begun: str | None = None  # the key that is being measured

    def finish(self) -> Result:
        """Measure, in as many processes as it takes: one that dies fails the key that it had begun, and the next goes on."""
        started = time.monotonic()
        self.log.unlink(missing_ok=True)
        while True:
            status = self._process(self.limit - (time.monotonic() - started))
            seconds = time.monotonic() - started
            if status == 0:
                failures = sum("error" in self.journal.results[key] for key in self.tried)
                return {"seconds": seconds} | ({"error": f"{failures} failed"} if failures else {})
            expired = seconds >= self.limit
            if expired:
                fault = f"stopped after {self.limit:.0f} s"
            else:
                fault = f"its process ended with status {status}: {ending(self.log.read_text(errors='replace'))}"
            is_last = expired or (self.begun is None and status != LOST)
            if self.begun is not None:
                self._add(self.begun, {"error": fault})
            if is_last:
                return {"seconds": seconds, "error": fault}

    def _process(self, seconds: float) -> int:
        """Run a process to its end, or for so long. Returns its exit status."""
        words = [self.part.name, self.part.target, self.device, TINY if self.tiny else "full"]
        command = python_command("megatape.lab.benchmark.worker", *words)
        with self.log.open("a") as log, child(command, stdin=PIPE, stderr=log, limit=seconds) as process:
            assert process.stdin is not None and process.stdout is not None
            skipped = self.tried | {key for key, result in self.journal.results.items() if measured(result)}
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(sorted(skipped)) + "\n")
                process.stdin.flush()
            for line in process.stdout:
                entry = json.loads(line)
                self.begun = entry.get("begin")
                if self.begun is None:
                    self._add(entry.pop("key"), entry)
            return process.wait()

    def _add(self, key: str, result: Result) -> None:
        self.journal.add(key, result)
        self.tried.add(key)
        self.begun = None
