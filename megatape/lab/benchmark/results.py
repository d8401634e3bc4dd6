"""What a benchmark measured: results.jsonl, a JSON object a line, written as soon as it is known, and its tables in table.md.

Ratios are to the fastest RoPE: of its ways to run the same thing the one that took least. Each way was measured in the same
rounds as one that is common to all.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from megatape.errors import ExistingPath, MissingPath, UserError
from megatape.lab.benchmark.parts import PARTS
from megatape.lab.encodings import BASELINE
from megatape.utils.files import append_lines, read_lines
from megatape.utils.tables import markdown

RESULTS = "results.jsonl"

# What was found, by names that tables.py knows; or only "error", what kept it from being measured; or only "left out", why it
# was not begun.
Result = dict[str, Any]


class Journal:
    """The results of a benchmark, of which the file is always complete: each line is on disk before the next measurement."""

    def __init__(self, path: Path, results: dict[str, Result]) -> None:
        """results: of earlier, which are written first. Raises UserError if the file exists."""
        self.results: dict[str, Result] = {}
        self._path = path
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            raise ExistingPath(f"{path} exists: choose another `out`, or continue it by `done` {path}") from None
        for key, result in results.items():
            self.add(key, result)

    def add(self, key: str, result: Result) -> None:
        """Keep a result. The last one of a key counts."""
        self.results[key] = result
        append_lines(self._path, [{"key": key} | result])


def read_results(path: Path) -> dict[str, Result]:
    """Key -> result of a results.jsonl, without lines that are none (a process was killed while it wrote).

    Raises FileNotFoundError, or UserError for a file of something else.
    """
    if not path.is_file():
        raise MissingPath(f"no results at {path}: give the results.jsonl of an earlier benchmark")
    entries = [entry for _, entry in read_lines(path) if isinstance(entry.get("key"), str)]
    if not entries and path.stat().st_size:
        raise UserError(f"{path} has no results: give the results.jsonl of an earlier benchmark")
    return {entry.pop("key"): entry for entry in entries}


def measured(result: Result | None) -> bool:
    """Whether there is a result that need not be measured again."""
    return result is not None and "error" not in result and "left out" not in result


Results = dict[str, Result]


def report(results: Results) -> str:
    """The tables of all parts that were measured, and a list of what is missing."""
    begun = {key.partition("/")[0] for key in results if "/" in key}  # the module of another part may lack a package
    parts = sorted((part for part in PARTS if part.name in begun), key=lambda part: part.order)
    tables = dict.fromkeys((part.target.partition(":")[0], part.table) for part in parts)
    paragraphs = [text for module, table in tables for text in getattr(import_module(module), table)(results)]
    missing = {key: r.get("error") or f"left out: {r['left out']}" for key, r in results.items() if not measured(r)}
    paragraphs += titled("Not measured", ["", "why"], [[key, why.replace("|", "/")] for key, why in missing.items()])
    return "\n\n".join(paragraphs) + "\n"


def rows_of(results: Results, part: str) -> Iterator[tuple[tuple[str, ...], Result]]:
    """The words of each key of a part behind the part's name, and what was measured."""
    for key, result in results.items():
        name, *words = key.split("/")
        if name == part and words and measured(result):
            yield tuple(words), result


def titled(title: str, header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """A table with a title, unless it is empty."""
    if rows := list(rows):
        yield f"**{title}**"
        yield markdown(header, rows)


def yes_no(met: bool) -> str:
    """Whether a target is met, as a cell."""
    return "yes" if met else "no"


def over_rope(ratios: dict[Any, float]) -> dict[Any, float]:
    """Ratios to something common to all as ratios to the fastest RoPE. Keys begin with the encoding."""
    fastest = min((ratio for key, ratio in ratios.items() if key[0] == BASELINE), default=None)
    return {key: ratio / fastest for key, ratio in ratios.items()} if fastest else {}
