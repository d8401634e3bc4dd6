"""Reads predictions in the format of SCROLLS' scorer."""

from pathlib import Path

from megatape.errors import MissingPath, UserError, content_errors, path_errors
from megatape.lab.tasks.scrolls.questions import Question, describe_ids
from megatape.utils.files.json_files import read_json
from megatape.utils.values.validation import as_type


@path_errors()
def read_predictions(path: Path) -> dict[str, str]:
    """Read a JSON file {id: answer}.

    Raises:
        MissingPath: The file is missing.
        UserError: The file has another format, or repeats an id.
    """
    if not path.is_file():
        raise MissingPath(f"{path}: no such file of predictions")
    with content_errors(f"{path}: no object {{id: answer}} of one text for each id", "correct it"):
        return as_type(read_json(path, unique_keys=True), dict[str, str])


def check_coverage(predictions: dict[str, str], questions: list[Question], path: Path) -> None:
    """Check that every question has a prediction, and every prediction a question.

    Args:
        predictions: Answers by id.
        questions: The set's questions.
        path: Predictions file, for messages.

    Raises:
        UserError: Predictions are missing, or belong to no question.
    """
    ids = {question.id for question in questions}
    missing = [key for key in ids if key not in predictions]
    unknown = [key for key in predictions if key not in ids]
    reasons = []
    if missing:
        reasons.append(f"{describe_ids(sorted(missing))} missing")
    if unknown:
        reasons.append(f"{describe_ids(unknown)} not in the set")
    if reasons:
        raise UserError(f"{path}: of {len(ids):,} questions, {' and '.join(reasons)}: predict this set, and all of it")
