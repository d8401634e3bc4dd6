"""Benchmark parts that take no time, faults that can happen to them, and running them."""

import os
import sys
import time
from pathlib import Path

from megatape.lab.benchmark.figures.measurement import Measurement
from megatape.lab.benchmark.gpu.bench import LOST, Bench
from megatape.lab.benchmark.gpu.registry import TIME_LIMIT, BenchmarkPart
from megatape.lab.benchmark.gpu.runner import BenchmarkConditions, benchmark


class Found(Measurement):
    """A measurement's result: facts about its process, or nothing."""

    process: int | None = None
    tiny: bool | None = None


def part(name: str, seconds: int = 20) -> BenchmarkPart:
    return BenchmarkPart(name, "tests.helpers.lab.benchmark_parts", seconds, arguments=(name,))


def run(
    out: Path,
    *parts: BenchmarkPart,
    done: Path | None = None,
    budget: float | None = None,
    time_limit: float = TIME_LIMIT,
) -> list[str]:
    """Measure parts, and return the lines about them."""
    lines: list[str] = []
    benchmark(parts, out, BenchmarkConditions("cpu", tiny=True, time_limit=time_limit), lines.append, done, budget)
    return lines


def measure(bench: Bench, name: str) -> None:
    """Measure the part with this name."""
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
