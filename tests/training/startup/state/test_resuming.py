"""Choosing the checkpoint to continue from, or starting from step 0 because none was saved."""

import shutil
from pathlib import Path

import pytest

from megatape.errors import UserError
from megatape.run_environment import RunEnvironment
from megatape.training.startup.state.resuming import resumed_checkpoint
from tests.helpers.runs.run_environments import accept, copied_run

LAST_STEP = 4


@pytest.fixture
def environment(tmp_path: Path) -> RunEnvironment:
    """Return the environment for a run with two checkpoints."""
    return copied_run(tmp_path / "run")


def test_the_newest_and_a_named_checkpoint(environment: RunEnvironment) -> None:
    newest = resumed_checkpoint(None, environment, accept)
    named = resumed_checkpoint(environment.folder.checkpoint(LAST_STEP), environment, accept)
    assert newest is not None
    assert named is not None
    assert newest.step == named.step == LAST_STEP


def test_a_run_that_saved_nothing_starts_again(environment: RunEnvironment) -> None:
    """Metrics from the first start are set aside, so that no step has two lines."""
    folder = environment.folder
    shutil.rmtree(folder.checkpoints)
    folder.latest.unlink(missing_ok=True)
    folder.metrics.write_text('{"step": 1}\n')
    assert resumed_checkpoint(None, environment, accept) is None
    assert not folder.metrics.exists()
    assert (folder.directory / "metrics-1.jsonl").read_text() == '{"step": 1}\n'


def test_a_run_that_lost_its_checkpoints_does_not_start_again(environment: RunEnvironment) -> None:
    shutil.rmtree(environment.folder.checkpoints)
    with pytest.raises(UserError, match="could repeat what is lost|holds no checkpoint"):
        resumed_checkpoint(None, environment, accept)
    assert environment.folder.metrics.exists()
