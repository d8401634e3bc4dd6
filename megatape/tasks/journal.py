"""The folder of an evaluation: what is known of it while it runs, so that one that was stopped goes on.

settings.json      what was evaluated how, written first: the folder belongs to this evaluation only
samples-0.jsonl    what each rank answered, a line per example, while the evaluation runs
samples.jsonl      the same of all ranks in the order of the examples, once it is complete
results.json       the settings and all results, written last
TASK.png           a picture of them

Every line of samples has the hash of its other fields: one that was altered or not written whole is asked again.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from megatape.errors import ExistingPath
from megatape.files import parse_json, read_json, write_atomically
from megatape.run_folder import read_lines
from megatape.tasks.task import Sample

HASH = "sha256"


class Journal:
    """The samples of one evaluation in its folder, which several ranks share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results.json"
        self._samples = folder / "samples.jsonl"

    def open(self, settings: dict[str, Any]) -> None:
        """Create the folder, or check that it belongs to an evaluation with these settings. For one process.

        Raises ExistingPath if it belongs to another one or to none, naming the first setting that differs.
        """
        path, text = self.folder / "settings.json", json.dumps(settings, default=str, indent=2)
        if self.folder.exists() and any(self.folder.iterdir()):
            try:
                known = read_json(path)
            except (OSError, ValueError):
                raise ExistingPath(
                    f"{self.folder} exists, but {path.name} there says of no evaluation what it is: choose another `output`"
                ) from None
            if difference := _difference(known, parse_json(text)):
                raise ExistingPath(
                    f"{self.folder} holds an evaluation with other settings: {difference}: choose another `output`, or "
                    "remove it to start again"
                )
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{text}\n".encode())

    def read(self) -> dict[int, Sample]:
        """The samples of all ranks, by number of the example. Altered lines, and those not written whole, are left out."""
        found: dict[int, Sample] = {}
        for path in [self._samples, *sorted(self.folder.glob("samples-*.jsonl"))]:
            for _, sample in read_lines(path):
                if sample.pop(HASH, None) == _hash(sample):
                    found[sample["example"]] = sample
        return found

    def add(self, rank: int, samples: Iterable[Sample]) -> None:
        """Append to what this rank answered. The file is closed again: other hosts then see it on a shared file system too."""
        lines = "".join("\n" + _line(sample) for sample in samples)  # the last line may be torn: begin a new one
        with (self.folder / f"samples-{rank}.jsonl").open("a", encoding="utf-8") as file:
            file.write(lines)

    def complete(self, samples: Iterable[Sample], results: dict[str, Any]) -> None:
        """Write the results and the samples of all ranks in one file. For one process, when no rank adds any more."""
        write_atomically(self._samples, "".join(_line(sample) + "\n" for sample in samples).encode())
        for path in self.folder.glob("samples-*.jsonl"):
            path.unlink()
        write_atomically(self.results, f"{json.dumps(results, default=str, indent=2)}\n".encode())


def _line(sample: Sample) -> str:
    return json.dumps(sample | {HASH: _hash(sample)})


def _hash(sample: Sample) -> str:
    return hashlib.sha256(json.dumps(sample).encode()).hexdigest()


def _difference(known: Any, wanted: Any, name: str = "") -> str | None:
    """The first value in which two JSON values differ, in words; None if there is none."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(key for key in known if key not in wanted)]:
            if difference := _difference(known.get(key), wanted.get(key), f"{name}.{key}".lstrip(".")):
                return difference
        return None
    return None if known == wanted else f"{name} is {json.dumps(known)} there and {json.dumps(wanted)} here"
