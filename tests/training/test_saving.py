"""Scheduling saves."""

from pathlib import Path
from typing import Any

import pytest

from megatape.errors import DataError, NotSaved
from megatape.reliability.goodput.process_clock import ProcessClock
from megatape.training.progress import Progress
from megatape.training.saving import SaveSchedule
from megatape.training.steps.output import StepOutput
from tests.helpers.runs.step_outputs import make_output


class Checkpoints:
    """Stand-in for the manager, listing its saves. `save` returns `answers` in turn, then True."""

    def __init__(self, answers: tuple[bool, ...] = ()) -> None:
        self.saves: list[str] = []
        self.polled: list[float] = []
        self.saved_step = 0
        self._answers = list(answers)

    def poll(self, num_ended: float) -> None:
        self.polled.append(num_ended)

    def save(self) -> bool:
        self.saves.append("save")
        if self._answers:
            return self._answers.pop(0)
        return True

    def ensure_saved(self) -> Path:
        self.saves.append("last")
        return Path("checkpoint")


class FullDisk(Checkpoints):
    """Manager unable to save the last step."""

    def ensure_saved(self) -> Path:
        raise NotSaved("no space")


def output_of(step: int, fault: str | None = None) -> StepOutput:
    return make_output(step, fault, num_saves_ended=float(step))


def schedule_of(checkpoints: Checkpoints, interval: int = 3) -> SaveSchedule:
    manager: Any = checkpoints
    return SaveSchedule(manager, interval, ProcessClock())


def test_save_at_interval() -> None:
    checkpoints = Checkpoints()
    schedule = schedule_of(checkpoints)
    waited = [schedule.after_step(output_of(step), is_final=False) for step in range(1, 8)]
    assert waited == [False, False, True, False, False, True, False]
    assert checkpoints.saves == ["save", "save"]
    assert checkpoints.polled == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_postponed_saves_and_skipped_steps_stay_due() -> None:
    checkpoints = Checkpoints(answers=(False,))
    schedule = schedule_of(checkpoints)
    assert not schedule.after_step(output_of(3, fault="the loss is nan"), is_final=False)
    assert schedule.after_step(output_of(4), is_final=False), "tried, and postponed"
    assert schedule.after_step(output_of(5), is_final=False)
    assert not schedule.after_step(output_of(7), is_final=False)
    assert checkpoints.saves == ["save", "save"]


def test_rollback_forgets_a_due_save() -> None:
    checkpoints = Checkpoints()
    schedule = schedule_of(checkpoints)
    schedule.after_step(output_of(3, fault="the loss is nan"), is_final=False)
    schedule.after_rollback()
    assert not schedule.after_step(output_of(4), is_final=False)


def test_final_step_is_saved_even_if_skipped() -> None:
    checkpoints = Checkpoints()
    assert schedule_of(checkpoints).after_step(output_of(1, fault="the loss is nan"), is_final=True)
    assert checkpoints.saves == ["last"]


@pytest.mark.parametrize(("step", "saved"), [(2, "checkpoint checkpoint"), (0, "nothing to save")])
def test_lost_data_leaves_a_checkpoint(step: int, saved: str) -> None:
    checkpoints = Checkpoints()
    schedule = schedule_of(checkpoints)
    message = f"shard not found; {saved}; once the data can be read"
    with pytest.raises(DataError, match=message), schedule.saving_on_data_error(Progress(8, step=step)):
        raise DataError("shard not found")
    assert len(checkpoints.saves) == bool(step)


def test_lost_data_and_a_full_disk() -> None:
    schedule = schedule_of(FullDisk())
    with pytest.raises(NotSaved, match="shard not found; no space"), schedule.saving_on_data_error(Progress(8, step=2)):
        raise DataError("shard not found")
