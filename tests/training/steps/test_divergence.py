"""Ending runs whose weights have diverged."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from megatape.errors import DataError, TrainingDiverged
from megatape.run_folder import RunFolder
from megatape.training.steps.divergence import DivergenceCheck
from megatape.training.steps.output import SkipReason
from tests.helpers.runs.step_outputs import make_output


def check_of(folder: Path, saved_step: int = 0, max_skipped_steps: int = 2) -> DivergenceCheck:
    checkpoints: Any = SimpleNamespace(saved_step=saved_step)
    return DivergenceCheck(max_skipped_steps, RunFolder(folder), checkpoints, Mock())


def test_only_consecutive_skipped_steps_count(tmp_path: Path) -> None:
    check = check_of(tmp_path)
    check.check_step(make_output(1, "the loss is nan"))
    check.check_step(make_output(2, "the loss is nan"))
    check.check_step(make_output(3))
    check.check_step(make_output(4, "the loss is nan"))
    check.check_step(make_output(5, not_computed=SkipReason.CONFIGURED))
    check.check_step(make_output(6, "the loss is nan"))
    with pytest.raises(TrainingDiverged, match=r"step 7 .*: the loss is nan. That makes 3 skipped steps in a row, .* allows 2"):
        check.check_step(make_output(7, "the loss is nan"))


def test_steps_undone_by_a_rollback_do_not_count(tmp_path: Path) -> None:
    check = check_of(tmp_path)
    check.check_step(make_output(1, "the loss is nan"))
    check.check_step(make_output(2, "the loss is nan"))
    check.after_rollback()
    check.check_step(make_output(1, "the loss is nan"))
    check.check_step(make_output(2, "the loss is nan"))
    with pytest.raises(TrainingDiverged, match="That makes 3 skipped steps in a row"):
        check.check_step(make_output(3, "the loss is nan"))


def test_steps_without_targets_are_an_error_of_the_data(tmp_path: Path) -> None:
    check = check_of(tmp_path, max_skipped_steps=0)
    with pytest.raises(DataError, match="its samples have no targets"):
        check.check_step(make_output(1, not_computed=SkipReason.NO_TARGETS))


@pytest.mark.parametrize(("saved_step", "remedy"), [(0, "start again"), (4, "continue with `resume` auto")])
def test_remedy_depends_on_checkpoints(tmp_path: Path, saved_step: int, remedy: str) -> None:
    check = check_of(tmp_path, saved_step)
    check.check_validation(1.0, 5)
    with pytest.raises(TrainingDiverged, match=f"the validation loss after step 5 is nan: .*{remedy}"):
        check.check_validation(float("nan"), 5)
