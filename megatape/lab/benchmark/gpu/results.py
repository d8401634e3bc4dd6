"""Benchmark results, and their file results.jsonl: one JSON object per line.

Example: {"key": "step 155m/rope/sdpa/eager", "seconds": 0.04, "ratio": 1.0}
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from megatape.errors import ExistingPath, MissingPath, UserError, flag
from megatape.utils.files.json_lines import append_lines, read_lines

RESULTS = "results.jsonl"


class ResultKey(NamedTuple):
    """Result key, such as "attention/155m/plain/sdpa" in files.

    Attributes:
        part: Name of the part.
        case: Names identifying the measured case. Empty for the part's own result.
    """

    part: str
    case: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join([self.part, *self.case])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key with this text."""
        part, *case = text.split("/")
        return cls(part, tuple(case))


@dataclass(frozen=True)
class BenchmarkResult:
    """Result of a measurement or a part.

    Attributes:
        figures: Figures in JSON, parsed by each part with its own Measurement class.
        error: Reason for a failure.
        left_out: Reason for skipping a part.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    left_out: str | None = None

    @property
    def is_measured(self) -> bool:
        """Whether a later benchmark can skip the measurement."""
        return self.error is None and self.left_out is None

    @property
    def reason(self) -> str | None:
        """Reason for missing figures, if any."""
        if self.left_out is not None:
            return f"left out: {self.left_out}"
        return self.error


Results = dict[ResultKey, BenchmarkResult]


class ResultLine(NamedTuple):
    """Line in results.jsonl."""

    key: ResultKey
    result: BenchmarkResult

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON."""
        line = {"key": str(self.key)} | self.result.figures
        if self.result.error is not None:
            line["error"] = self.result.error
        if self.result.left_out is not None:
            line["left out"] = self.result.left_out
        return line

    @classmethod
    def parse(cls, line: dict[str, Any]) -> Self:
        """Return the line read from its JSON."""
        figures = dict(line)
        key = ResultKey.parse(figures.pop("key"))
        error = figures.pop("error", None)
        left_out = figures.pop("left out", None)
        return cls(key, BenchmarkResult(figures, error, left_out))


class ResultsFile:
    """Results by key, and their file. Each line is on disk before the next measurement starts."""

    def __init__(self, path: Path, results: Results) -> None:
        """Create results.jsonl, starting with earlier results. Raises UserError if it exists."""
        self.results: Results = {}
        self._path = path
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            raise ExistingPath(
                f"{path} exists: choose another {flag('output')}, or continue it by {flag('done')} {path}"
            ) from None
        for key, result in results.items():
            self.add(key, result)

    def add(self, key: ResultKey, result: BenchmarkResult) -> None:
        """Add a result, replacing an earlier one with the same key."""
        self.results[key] = result
        append_lines(self._path, [ResultLine(key, result).to_json()])


def read_results(path: Path) -> Results:
    """Read a results.jsonl, skipping a line that a killed process has not finished.

    Raises:
        FileNotFoundError: The file is missing.
        UserError: The file has no results.
    """
    if not path.is_file():
        raise MissingPath(f"no results at {path}: give the results.jsonl of an earlier benchmark")
    results = {}
    for _, line in read_lines(path):
        if isinstance(line.get("key"), str):
            key, result = ResultLine.parse(line)
            results[key] = result
    if not results and path.stat().st_size:
        raise UserError(f"{path} has no results: give the results.jsonl of an earlier benchmark")
    return results
