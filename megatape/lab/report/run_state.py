"""State of a run, judged by its events and the age of its files."""

from enum import StrEnum

from megatape.lab.report.load import last_written
from megatape.lab.report.run import STARTS, Run
from megatape.utils.text.units import format_duration

# Clock differences between hosts are ignored up to this number of seconds.
CLOCK_TOLERANCE = 10.0
# A run is silent after QUIET_SECONDS and the time for QUIET_STEPS steps without a new line.
QUIET_SECONDS = 120.0
QUIET_STEPS = 20


class RunState(StrEnum):
    """Run states. Values are shown to readers; ENDS are also event kinds."""

    NOT_BEGUN = "not begun"
    TRAINING = "training"
    SILENT = "silent"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


# States recorded as an event.
ENDS = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


def state_of(run: Run, pace: float, now: float) -> RunState:
    """Return the state of a run.

    Args:
        run: The run.
        pace: Seconds per step, NaN if unknown.
        now: Present time, seconds since 1970.
    """
    kinds = [event.kind for event in run.events if event.kind in (*STARTS, *ENDS)]
    if kinds and kinds[-1] in ENDS:
        return RunState(kinds[-1])
    if run.last_step >= run.config.training.steps:
        return RunState.FINISHED
    if not kinds and not run.last_step:
        return RunState.NOT_BEGUN
    # Without a known pace, allow for a long first step.
    if pace > 0:
        max_age = max(QUIET_SECONDS, QUIET_STEPS * pace)
    else:
        max_age = QUIET_SECONDS * QUIET_STEPS
    age = now - last_written(run)
    if age < max_age:
        return RunState.TRAINING
    return RunState.SILENT


def describe_state(run: Run, state: RunState, pace: float, now: float) -> str | None:
    """Return a phrase about the state of a run, None if there is nothing to add.

    Args:
        run: The run.
        state: Its state.
        pace: Seconds per step, NaN if unknown.
        now: Present time, seconds since 1970.
    """
    written = last_written(run)
    if state is RunState.TRAINING and is_ahead(written, now):
        return f"perhaps: the last line is {describe_age(written, now)}"
    if state is RunState.TRAINING and pace > 0:
        steps_left = run.samples_left / run.config.batches.of_step(run.last_step)
        return f"{format_duration(steps_left * pace)} left"
    if state is RunState.SILENT:
        return f"last step {describe_age(written, now)}"
    if state is RunState.FAILED and run.events:
        return run.events[-1].detail
    return None


def is_ahead(written: float, now: float) -> bool:
    """Whether a file was written in the future, because its host's clock differs from this machine's.

    Args:
        written: Seconds since 1970.
        now: Present time, seconds since 1970.
    """
    return written > now + CLOCK_TOLERANCE


def describe_age(written: float, now: float) -> str:
    """Describe a file's age, such as "41 s ago", or how far it is ahead of this machine's clock.

    Args:
        written: Seconds since 1970.
        now: Present time, seconds since 1970.
    """
    age = now - written
    if is_ahead(written, now):
        return f"{format_duration(-age)} ahead of this machine's clock"
    return f"{format_duration(max(0.0, age))} ago"
