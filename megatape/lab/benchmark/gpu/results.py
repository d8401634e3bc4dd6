"""Results of a benchmark: results.jsonl, one JSON object per line, and the tables of table.md.

Ratios are to the fastest RoPE. All ways to run a case were measured in the same rounds as a common baseline, so their ratios to
it can be compared.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from megatape.errors import ExistingPath, MissingPath, UserError
from megatape.lab.benchmark.gpu.parts import PARTS
from megatape.lab.encodings import BASELINE
from megatape.utils.json_lines import append_lines, read_lines
from megatape.utils.tables import markdown

RESULTS = "results.jsonl"

# Figures by name. A failed measurement has only "error", a skipped one only "left out", with the reason.
Result = dict[str, Any]
# Results by key, such as "attention/155m/plain/sdpa": the part, then the measurement.
Results = dict[str, Result]


class Journal:
    """The results of a benchmark and their file, which is always complete: each line is on disk before the next measurement.

    Attributes:
        results: Results by key.
    """

    def __init__(self, path: Path, results: Results) -> None:
        """Create the file.

        Args:
            path: File of the results.
            results: Earlier results, to write first.

        Raises:
            UserError: The file exists.
        """
        self.results: Results = {}
        self._path = path
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            raise ExistingPath(f"{path} exists: choose another `out`, or continue it by `done` {path}") from None
        for key, result in results.items():
            self.add(key, result)

    def add(self, key: str, result: Result) -> None:
        """Add a result. It replaces an earlier one of the same key."""
        self.results[key] = result
        append_lines(self._path, [{"key": key} | result])


def read_results(path: Path) -> Results:
    """Read a results.jsonl. Lines that a killed process has not finished are skipped.

    Raises:
        FileNotFoundError: There is no such file.
        UserError: The file has no results.
    """
    if not path.is_file():
        raise MissingPath(f"no results at {path}: give the results.jsonl of an earlier benchmark")
    results = {}
    for _, entry in read_lines(path):
        if isinstance(entry.get("key"), str):
            results[entry.pop("key")] = entry
    if not results and path.stat().st_size:
        raise UserError(f"{path} has no results: give the results.jsonl of an earlier benchmark")
    return results


def measured(result: Result | None) -> bool:
    """Whether there is a result that need not be measured again."""
    return result is not None and "error" not in result and "left out" not in result


def report(results: Results) -> str:
    """Return the tables of all measured parts, and the list of what is missing."""
    # Only the modules of measured parts: another one may lack a package.
    started = {key.partition("/")[0] for key in results if "/" in key}
    parts = sorted((part for part in PARTS if part.name in started), key=lambda part: part.order)
    paragraphs: list[str] = []
    for target in dict.fromkeys(part.table_target for part in parts):
        table = resolve_name(target)
        paragraphs += table(results)

    missing = []
    for key, result in results.items():
        if not measured(result):
            reason = result.get("error") or f"left out: {result['left out']}"
            missing.append([key, reason.replace("|", "/")])
    paragraphs += titled("Not measured", ["", "why"], missing)
    return "\n\n".join(paragraphs) + "\n"


def rows_of(results: Results, part: str) -> Iterator[tuple[tuple[str, ...], Result]]:
    """Yield the measured results of a part, with the words of their keys after the part's name."""
    for key, result in results.items():
        name, *words = key.split("/")
        if name == part and words and measured(result):
            yield tuple(words), result


def titled(title: str, header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield a title and a table, unless the table is empty."""
    all_rows = list(rows)
    if all_rows:
        yield f"**{title}**"
        yield markdown(header, all_rows)


def yes_no(met: bool) -> str:
    """Return a cell that says whether a target is met."""
    return "yes" if met else "no"


def over_rope(ratios: dict[Any, float]) -> dict[Any, float]:
    """Divide ratios to a common baseline by that of the fastest RoPE.

    Args:
        ratios: Ratios by key. The first item of a key is the encoding.

    Returns:
        The new ratios, none if RoPE is missing.
    """
    ratios_of_rope = [ratio for key, ratio in ratios.items() if key[0] == BASELINE]
    fastest = min(ratios_of_rope, default=0)
    if not fastest:
        return {}
    return {key: ratio / fastest for key, ratio in ratios.items()}
