"""Files of predictions as SCROLLS' scorer takes them: {id: answer}."""

from pathlib import Path
from typing import Any

from megatape.errors import MissingPath, UserError, path_errors
from megatape.files import read_json
from megatape.tasks.scrolls_sets import Question, some_ids


@path_errors()
def read_predictions(path: Path) -> dict[str, str]:
    """Answers by id, from a file {id: answer}.

    Raises FileNotFoundError, or UserError for another content and ids given twice.
    """
    twice: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                twice.append(key)
            found[key] = value
        return found

    if not path.is_file():
        raise MissingPath(f"{path}: no such file of predictions")
    try:
        found = read_json(path, unique)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: it must be an object {{id: answer}}, not {str(found)[:40]!r}")
    if twice:
        raise UserError(f"{path}: {some_ids(twice)} given twice: give each once")
    if others := [key for key, value in found.items() if not isinstance(value, str)]:
        raise UserError(f"{path}: {some_ids(others)} whose answer is not a text: {found[others[0]]!r:.40}")
    return found


def check_coverage(predictions: dict[str, str], questions: list[Question], path: Path) -> None:
    """Raises UserError unless there is a prediction for each question, and none for anything else."""
    ids = {question.id for question in questions}
    missing, unknown = [key for key in ids if key not in predictions], [key for key in predictions if key not in ids]
    faults = [f"{some_ids(sorted(missing))} missing"] if missing else []
    faults += [f"{some_ids(unknown)} not in the set"] if unknown else []
    if faults:
        raise UserError(f"{path}: of {len(ids):,} questions, {' and '.join(faults)}: predict this set, and all of it")
