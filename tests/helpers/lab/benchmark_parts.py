"""Parts of a benchmark that take no time, and what can happen to them; and how to run parts."""

import os
import sys
import time
from pathlib import Path

from megatape.lab.benchmark.gpu.bench import LOST, Bench
from megatape.lab.benchmark.gpu.parts import TIME_LIMIT, Part
from megatape.lab.benchmark.gpu.results import Measurement
from megatape.lab.benchmark.gpu.runner import Conditions, benchmark


class Found(Measurement):
    """Result of a measurement: facts about its process, or nothing."""

    process: int | None = None
    tiny: bool | None = None


def part(name: str, seconds: int = 20) -> Part:
    return Part(name, "tests.helpers.lab.benchmark_parts", seconds, arguments=(name,))


def run(
    out: Path,
    *parts: Part,
    done: Path | None = None,
    budget: float | None = None,
    time_limit: float = TIME_LIMIT,
) -> list[str]:
    return list(benchmark(parts, out, Conditions("cpu", tiny=True, time_limit=time_limit), done, budget))


def measure(bench: Bench, name: str) -> None:
    """Measure the part of that name below."""
    {"good": good, "faulty": faulty, "lost": lost, "missing": missing, "slow": slow}[name](bench)


def good(bench: Bench) -> None:
    print("libraries print, too")
    for name in ("a", "b"):
        bench.measure((name,), lambda: Found(process=os.getpid(), tiny=bench.tiny))


def faulty(bench: Bench) -> None:
    """The second measurement raises, the fourth takes the process with it."""

    def wrong() -> Found:
        raise RuntimeError("CUDA error: one\n\nof several lines")

    def deadly() -> Found:
        print("the last words", file=sys.stderr, flush=True)
        os.abort()

    for name, action in {"a": Found, "b": wrong, "c": Found, "d": deadly, "e": Found}.items():
        bench.measure((name,), action)


def lost(bench: Bench) -> None:
    """After a failure nothing works any more in this process."""
    for name in ("a", "b", "c"):
        if name == "b" and not bench.has_result((name,)):
            bench.fail((name,), "CUDA error")
            os._exit(LOST)
        bench.measure((name,), Found)


def missing(bench: Bench) -> None:
    import no_such_package  # type: ignore[import-not-found]  # noqa: F401


def slow(bench: Bench) -> None:
    """Sleep longer than any test, to be killed."""
    bench.measure(("a",), Found)
    bench.begin(("b",))
    time.sleep(600)
