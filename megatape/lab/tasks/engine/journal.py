"""The folder of an evaluation, from which a stopped evaluation resumes.

settings.json      model, task, settings and examples, written first: the folder belongs to this evaluation only
samples-0.jsonl    predictions of each rank, one line per example, while the evaluation runs
samples.jsonl      predictions of all ranks in the order of the examples, once the evaluation is complete
results.json       settings and all results, written last

Every line of predictions has the hash of its other fields. A line is computed again if it was altered, if it was not written
completely, or if an earlier version wrote it with other fields.
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from megatape.errors import ExistingPath, UserError
from megatape.lab.tasks.engine.record import EvaluationResults, EvaluationSettings
from megatape.utils.atomic import write_atomically
from megatape.utils.json_files import json_content, parse_json, read_json
from megatape.utils.json_lines import append_lines, read_lines
from megatape.utils.validation import as_type

# Key of the hash in a line of predictions.
HASH = "sha256"
Prediction = TypeVar("Prediction")


class Journal(Generic[Prediction]):
    """The predictions of one evaluation in its folder, shared by several ranks.

    Args:
        folder: Folder of the evaluation.
        kind: Type of the predictions, a dataclass.
    """

    def __init__(self, folder: Path, kind: type[Prediction]) -> None:
        self.folder = folder
        self._kind = kind
        self._samples = folder / "samples.jsonl"

    def open(self, settings: EvaluationSettings) -> None:
        """Create the folder, or check that it belongs to an evaluation with these settings. Call it in one process.

        Args:
            settings: Everything that determines the predictions.

        Raises:
            ExistingPath: The folder belongs to another evaluation or to none. The message names the first setting that differs.
        """
        path = self.folder / "settings.json"
        text = json_content(settings.content(), str(path), indent=2, default=str)
        if self.folder.exists() and any(self.folder.iterdir()):
            try:
                known = read_json(path)
            except (OSError, ValueError):
                raise ExistingPath(
                    f"{self.folder} exists, but {path.name} there describes no evaluation: choose another `output`"
                ) from None
            difference = _difference(known, parse_json(text))
            if difference is None:
                return
            # Without predictions there is nothing to mix with: the earlier evaluation failed to begin.
            has_predictions = any(self.folder.glob("samples*.jsonl"))
            if has_predictions:
                raise ExistingPath(
                    f"{self.folder} holds an evaluation with other settings: {difference}: choose another `output`, or "
                    "remove it to start again"
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text + b"\n")

    def read(self) -> dict[int, Prediction]:
        """Return the valid predictions of all ranks, by number of the example."""
        predictions: dict[int, Prediction] = {}
        for path in [self._samples, *sorted(self.folder.glob("samples-*.jsonl"))]:
            for _, line in read_lines(path):
                is_intact = line.pop(HASH, None) == _hash(line)
                number = line.get("example")
                if is_intact and type(number) is int:
                    with suppress(UserError):
                        predictions[number] = as_type(line, self._kind)
        return predictions

    def add(self, rank: int, numbers: Iterable[int], predictions: Iterable[Prediction]) -> None:
        """Append to the predictions of one rank.

        Args:
            rank: Number of the rank's share of the batches.
            numbers: Number of each prediction's example.
            predictions: Predictions to append.
        """
        append_lines(self.folder / f"samples-{rank}.jsonl", map(_line, numbers, predictions))

    def complete(self, predictions: Iterable[Prediction], results: EvaluationResults) -> None:
        """Write the results, and the predictions of all ranks in one file.

        Call it in one process, after the last rank has added its predictions.

        Args:
            predictions: Predictions for all examples, in order.
            results: Results of the evaluation.
        """
        lines = []
        for number, prediction in enumerate(predictions):
            line = json.dumps(_line(number, prediction))
            lines.append(f"{line}\n")
        write_atomically(self._samples, "".join(lines).encode())
        for path in self.folder.glob("samples-*.jsonl"):
            path.unlink()

        results_path = self.folder / "results.json"
        content = json_content(results.content(), str(results_path), indent=2, default=str)
        write_atomically(results_path, content + b"\n")


def _line(number: int, prediction: Any) -> dict[str, Any]:
    line = {"example": number} | vars(prediction)
    return line | {HASH: _hash(line)}


def _hash(line: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(line).encode()).hexdigest()


def _difference(there: Any, here: Any, name: str = "") -> str | None:
    """Describe the first difference between two JSON values, or return None if they are equal.

    Args:
        there: Value in the folder.
        here: Value of this evaluation.
        name: Path of keys to the values.
    """
    if isinstance(there, dict) and isinstance(here, dict):
        for key in here | there:
            path = f"{name}.{key}".lstrip(".")
            difference = _difference(there.get(key), here.get(key), path)
            if difference is not None:
                return difference
        return None
    if there == here:
        return None
    return f"{name} is {json.dumps(there)} there and {json.dumps(here)} here"
