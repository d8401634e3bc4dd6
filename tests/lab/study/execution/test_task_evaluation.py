"""Tasks that a study evaluates its models on, as words of a command line."""

from pathlib import Path

import pytest

from megatape.errors import UserError
from megatape.lab.study.execution.task_evaluation import TaskCommand, TaskEvaluation


def test_words_are_split_as_in_a_shell() -> None:
    command = TaskCommand.parse("perplexity --data 'my data' --lengths 16,32")

    assert command.task == "perplexity"
    assert command.options == ("--data", "my data", "--lengths", "16,32")
    assert command.title == "perplexity --data 'my data' --lengths 16,32"


@pytest.mark.parametrize("text", ["", "  ", "passkey --trials '3"])
def test_text_that_names_no_task_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="give a task and its options"):
        TaskCommand.parse(text)


def test_other_options_have_another_folder() -> None:
    names = set()
    for text in ("passkey", "passkey --trials 3", "passkey --trials 4", "passkey  --trials 4"):
        names.add(TaskCommand.parse(text).folder_name)

    # Spaces between words are no difference.
    assert len(names) == 3
    for name in names:
        assert name.startswith("passkey-")


def test_corrupted_results_are_refused(tmp_path: Path) -> None:
    command = TaskCommand.parse("passkey")
    evaluation = TaskEvaluation.of(command, Path("run/step-00000004"), tmp_path, [])
    assert not evaluation.is_done()
    evaluation.path.parent.mkdir(parents=True)
    evaluation.path.write_text("{")
    assert evaluation.is_done()

    with pytest.raises(UserError, match="results.json is corrupted .* remove it and run the command again"):
        evaluation.read_columns()
