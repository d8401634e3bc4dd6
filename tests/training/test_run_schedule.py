"""Scheduling a run's evaluations, checks and end."""

from dataclasses import replace

from megatape.training.run_schedule import RunSchedule

SCHEDULE = RunSchedule(
    num_steps=7,
    evaluation_interval=3,
    save_interval=5,
    replica_check_interval=2,
    computation_check_interval=3,
    max_skipped_steps=8,
)


def test_intervals_count_from_the_start_of_the_run() -> None:
    steps = range(1, 8)
    assert [step for step in steps if SCHEDULE.is_replica_check_due(step)] == [2, 4, 6]
    assert [step for step in steps if SCHEDULE.is_computation_check_due(step)] == [3, 6]
    assert [step for step in steps if SCHEDULE.is_evaluation_due(step)] == [3, 6, 7], "the last step is always evaluated"


def test_computations_are_not_checked_after_the_last_step_or_without_an_interval() -> None:
    """The check needs the next step's samples."""
    assert not replace(SCHEDULE, num_steps=6).is_computation_check_due(6)
    assert not any(replace(SCHEDULE, computation_check_interval=0).is_computation_check_due(step) for step in range(1, 8))


def test_a_run_with_fewer_steps_than_are_done_is_finished() -> None:
    assert [SCHEDULE.is_finished(step) for step in (6, 7, 8)] == [False, True, True]
    assert [SCHEDULE.is_last(step) for step in (6, 7, 8)] == [False, True, False]
