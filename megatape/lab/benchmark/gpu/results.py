"""Results of a benchmark: results.jsonl, one JSON object per line."""

from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from megatape.errors import ExistingPath, MissingPath, UserError
from megatape.utils.json_lines import append_lines, read_lines

RESULTS = "results.jsonl"

# Line of a measurement in JSON. A failed measurement has only "error", a skipped one only "left out", with the reason.
Result = dict[str, Any]


class Key(NamedTuple):
    """Key of a result. In files, it is text such as "attention/155m/plain/sdpa".

    Attributes:
        part: Name of the part.
        words: Words naming the measurement, none for the result of the whole part.
    """

    part: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join([self.part, *self.words])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key with this text."""
        part, *words = text.split("/")
        return cls(part, tuple(words))


Results = dict[Key, Result]


class Measurement(BaseModel):
    """Base class of the results of a measurement.

    Keys in JSON are the aliases of the fields, or else their names with spaces for underscores.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True, alias_generator=lambda name: name.replace("_", " "))

    def to_json(self) -> Result:
        """Return the line of the measurement. Fields that are None are left out."""
        return self.model_dump(by_alias=True, exclude_none=True)


class Times(Measurement):
    """Times of an action.

    Attributes:
        seconds: Median seconds.
        ratio: Ratio to the seconds of a baseline in the same round, the median over rounds.
    """

    seconds: float
    ratio: float


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

    def add(self, key: Key, result: Result) -> None:
        """Add a result. It replaces an earlier one of the same key."""
        self.results[key] = result
        append_lines(self._path, [{"key": str(key)} | result])


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
            results[Key.parse(entry.pop("key"))] = entry
    if not results and path.stat().st_size:
        raise UserError(f"{path} has no results: give the results.jsonl of an earlier benchmark")
    return results


def measured(result: Result | None) -> bool:
    """Whether there is a result that need not be measured again."""
    return result is not None and "error" not in result and "left out" not in result
