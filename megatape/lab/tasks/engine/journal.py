"""The folder of an evaluation, from which a stopped evaluation resumes.

settings.json      model, task, options and examples, written first: they claim the folder for this evaluation
samples-0.jsonl    predictions of a rank (here 0) while the evaluation is running, one line per example
samples.jsonl      all predictions in the order of the examples, once all exist
results.json       settings and all results, written last

Every line of predictions includes a hash of its other fields. Lines that are altered, torn, or written by an earlier version
with other fields are computed again.
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from megatape.errors import ExistingPath, UserError, flag
from megatape.lab.tasks.engine.record import EvaluationResults, EvaluationSettings
from megatape.lab.tasks.engine.recorded import RESULTS
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.json_files import json_content, parse_json, read_json
from megatape.utils.files.json_lines import append_lines, read_lines
from megatape.utils.values.validation import as_type

# Key of a line's hash.
HASH = "sha256"
Prediction = TypeVar("Prediction")


class EvaluationJournal(Generic[Prediction]):
    """Predictions of one evaluation in its folder, written by several ranks.

    Args:
        folder: The evaluation's folder.
        prediction_type: Dataclass of the predictions.
    """

    def __init__(self, folder: Path, prediction_type: type[Prediction]) -> None:
        self.folder = folder
        self._prediction_type = prediction_type
        self._samples = folder / "samples.jsonl"

    def open(self, settings: EvaluationSettings) -> None:
        """Create the folder, or check that it has these settings. Call it in one process.

        Args:
            settings: The evaluation's settings.

        Raises:
            ExistingPath: The folder belongs to another evaluation or to none. The message names the first setting that differs.
        """
        path = self.folder / "settings.json"
        content = json_content(settings.content(), str(path), indent=2, default=str)
        if self.folder.exists() and any(self.folder.iterdir()):
            try:
                recorded = read_json(path)
            except (OSError, ValueError):
                raise ExistingPath(
                    f"{self.folder} exists, but {path.name} there describes no evaluation: choose another {flag('output')}"
                ) from None
            difference = _first_difference(recorded, parse_json(content))
            if difference is None:
                return
            # An evaluation that stopped before its first prediction may be replaced.
            has_predictions = any(self.folder.glob("samples*.jsonl"))
            if has_predictions:
                raise ExistingPath(
                    f"{self.folder} holds an evaluation with other settings: {difference}: choose another {flag('output')}, or "
                    "remove it to start again"
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content + b"\n")

    def read(self) -> dict[int, Prediction]:
        """Return all ranks' intact predictions: number of the example -> prediction."""
        predictions: dict[int, Prediction] = {}
        for path in [self._samples, *sorted(self.folder.glob("samples-*.jsonl"))]:
            for _, line in read_lines(path):
                is_intact = line.pop(HASH, None) == _hash(line)
                number = line.get("example")
                if is_intact and type(number) is int:
                    with suppress(UserError):
                        predictions[number] = as_type(line, self._prediction_type)
        return predictions

    def add(self, rank: int, numbers: Iterable[int], predictions: Iterable[Prediction]) -> None:
        """Append predictions of one rank.

        Args:
            rank: Index of the rank's batch share.
            numbers: Example numbers.
            predictions: Prediction for each example.
        """
        append_lines(self.folder / f"samples-{rank}.jsonl", map(_line, numbers, predictions))

    def complete(self, predictions: Iterable[Prediction], results: EvaluationResults) -> None:
        """Merge all ranks' predictions into one file, and write the results.

        Call it in one process, after all ranks have added their predictions.

        Args:
            predictions: Predictions for all examples, in order.
            results: The evaluation's results.
        """
        lines = []
        for number, prediction in enumerate(predictions):
            line = json.dumps(_line(number, prediction))
            lines.append(f"{line}\n")
        write_atomically(self._samples, "".join(lines).encode())
        for path in self.folder.glob("samples-*.jsonl"):
            path.unlink()

        results_path = self.folder / RESULTS
        content = json_content(results.content(), str(results_path), indent=2, default=str)
        write_atomically(results_path, content + b"\n")


def _line(number: int, prediction: Any) -> dict[str, Any]:
    line = {"example": number} | vars(prediction)
    return line | {HASH: _hash(line)}


def _hash(line: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(line).encode()).hexdigest()


def _first_difference(recorded: Any, current: Any, path: str = "") -> str | None:
    """Describe the first difference between JSON values at a path of keys, or return None if they are equal."""
    if isinstance(recorded, dict) and isinstance(current, dict):
        for key in current | recorded:
            key_path = f"{path}.{key}".lstrip(".")
            difference = _first_difference(recorded.get(key), current.get(key), key_path)
            if difference is not None:
                return difference
        return None
    if recorded == current:
        return None
    return f"{path} is {json.dumps(recorded)} there and {json.dumps(current)} here"
