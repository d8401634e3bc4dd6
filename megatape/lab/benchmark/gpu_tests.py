"""The tests that need a GPU, each a result."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatape.errors import MissingPath
from megatape.lab.benchmark.results import Results
from megatape.lab.benchmark.worker import Bench
from megatape.lab.processes import ending

TESTS = Path(__file__).parents[3] / "tests/gpu"


class Reports:
    """A plugin of pytest that keeps the outcome of every test, and leaves out those that have one."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.num_found = 0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what is known."""
        self.num_found = len(items)
        known = [item for item in items if self.bench.has_result(_name(item.nodeid))]
        config.hook.pytest_deselected(items=known)
        items[:] = [item for item in items if item not in known]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported."""
        if report.failed:
            self.bench.fail(_name(report.nodeid), ending(report.longreprtext))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.bench.begin(_name(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        name = _name(report.nodeid)
        if report.failed:
            self.bench.fail(name, ending(report.longreprtext))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self.bench.record(name, {"skipped": ending(reason)})
        elif report.when == "call":
            self.bench.record(name, {"seconds": report.duration})


def gpu_tests(bench: Bench) -> None:
    """Run them all."""
    if not TESTS.is_dir():
        raise MissingPath(f"no tests at {TESTS}: run the benchmark in a clone of the repository")
    options = ["-m", "gpu", "-p", "no:cacheprovider", "-q", "--rootdir", str(TESTS.parents[1]), "--durations=0"]
    reports = Reports(bench)
    code = pytest.main([*options, str(TESTS)], plugins=[reports])
    if not reports.num_found or code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        raise RuntimeError(f"pytest ran none of the tests in {TESTS}, or not all of them: {code!r}; its output says why")


def _name(node: str) -> str:
    return node.removeprefix("tests/gpu/")


def table(results: Results) -> Iterator[str]:
    """How many tests passed, failed or were skipped."""
    of_tests = {key: result for key, result in results.items() if key.startswith("tests/")}
    if of_tests:
        kinds = Counter("failed" if "error" in r else "skipped" if "skipped" in r else "passed" for r in of_tests.values())
        yield f"Tests marked gpu: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}."
