"""The tests that need a GPU. Each test's outcome is a result."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatape.errors import MissingPath
from megatape.lab.benchmark.figures.measurement import Measurement
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import BenchmarkResult, Results
from megatape.lab.processes import ending

# Test folder in a clone of the repository.
TESTS = Path(__file__).parents[5] / "tests/gpu"


class GpuTestOutcome(Measurement):
    """Outcome unless the test failed: its duration, or the reason for skipping it."""

    seconds: float | None = None
    skipped: str | None = None


class OutcomeRecorder:
    """pytest plugin that records each test's outcome, and skips tests with a result."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.num_collected = 0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect tests with a result."""
        self.num_collected = len(items)
        deselected = [item for item in items if self.bench.has_result(_case(item.nodeid))]
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that cannot be imported."""
        if report.failed:
            self.bench.fail(_case(report.nodeid), ending(report.longreprtext))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Announce a test."""
        self.bench.begin(_case(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome after a test's setup, call or teardown."""
        case = _case(report.nodeid)
        if report.failed:
            self.bench.fail(case, ending(report.longreprtext))
        elif report.skipped:
            reason = report.longreprtext
            if isinstance(report.longrepr, tuple):
                _, _, reason = report.longrepr
            self.bench.record(case, GpuTestOutcome(skipped=ending(reason)))
        elif report.when == "call":
            self.bench.record(case, GpuTestOutcome(seconds=report.duration))


def measure(bench: Bench, folder: Path = TESTS) -> None:
    """Run all tests in a folder. A file that cannot be imported is a failure like that of a test.

    Raises:
        FileNotFoundError: The folder is missing.
        RuntimeError: pytest could not run the tests.
    """
    if not folder.is_dir():
        raise MissingPath(f"no tests at {folder}: run the benchmark in a clone of the repository")
    options = ["-m", "gpu", "-p", "no:cacheprovider", "-q", "--rootdir", str(folder.parents[1]), "--durations=0"]
    # Without this option, a file that cannot be imported prevents the tests of all other files from running.
    options.append("--continue-on-collection-errors")
    reports = OutcomeRecorder(bench)
    code = pytest.main([*options, str(folder)], plugins=[reports])
    has_failed = code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERRUPTED)
    if has_failed or not reports.num_collected:
        raise RuntimeError(f"pytest ran none of the tests in {folder}, or not all of them: {code!r}; its output says why")


def _case(node: str) -> tuple[str, ...]:
    return tuple(node.removeprefix("tests/gpu/").split("/"))


def table(results: Results) -> Iterator[str]:
    """Yield how many tests passed, failed or were skipped."""
    counts = Counter[str]()
    for key, result in results.items():
        if key.part == "tests" and key.case:
            counts[_outcome(result)] += 1
    if counts:
        parts = [f"{count} {outcome}" for outcome, count in sorted(counts.items())]
        yield f"Tests marked gpu: {', '.join(parts)}."


def _outcome(result: BenchmarkResult) -> str:
    if result.error is not None:
        return "failed"
    if GpuTestOutcome.model_validate(result.figures).skipped is not None:
        return "skipped"
    return "passed"
