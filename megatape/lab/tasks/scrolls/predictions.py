"""Files of predictions in the format of SCROLLS' scorer."""

from pathlib import Path

from megatape.errors import MissingPath, UserError, content_errors, path_errors
from megatape.lab.tasks.scrolls.questions import Question, some_ids
from megatape.utils.json_files import read_json
from megatape.utils.validation import as_type


@path_errors()
def read_predictions(path: Path) -> dict[str, str]:
    """Read answers by id, from a file {id: answer} in the format of SCROLLS' scorer.

    Raises:
        MissingPath: The file is missing.
        UserError: The file has another format, or an id twice.
    """
    if not path.is_file():
        raise MissingPath(f"{path}: no such file of predictions")
    with content_errors(f"{path}: no object {{id: answer}} of one text for each id", "correct it"):
        return as_type(read_json(path, unique_keys=True), dict[str, str])


def check_coverage(predictions: dict[str, str], questions: list[Question], path: Path) -> None:
    """Check that there is a prediction for each question, and no other prediction.

    Args:
        predictions: Answers by id.
        questions: Questions of the set.
        path: File of the predictions, for messages.

    Raises:
        UserError: Predictions are missing, or belong to no question.
    """
    ids = {question.id for question in questions}
    missing = [key for key in ids if key not in predictions]
    unknown = [key for key in predictions if key not in ids]
    problems = []
    if missing:
        problems.append(f"{some_ids(sorted(missing))} missing")
    if unknown:
        problems.append(f"{some_ids(unknown)} not in the set")
    if problems:
        raise UserError(f"{path}: of {len(ids):,} questions, {' and '.join(problems)}: predict this set, and all of it")
