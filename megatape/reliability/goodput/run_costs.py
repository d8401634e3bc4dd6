"""Costs of a run's steps, saves and restarts, for estimates about longer runs."""

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from megatape.reliability.goodput.parts import RESTART_PARTS, TimePart
from megatape.reliability.goodput.run_time import RunTime


@dataclass(frozen=True)
class RunCosts:
    """Costs of a run, for estimates about longer ones. None if the run has none of them.

    Attributes:
        step_seconds: Mean seconds of a kept step, with its share of waits for data, evaluations, reports and the like.
        save_seconds: Mean seconds that training waits for a save.
        restart_seconds: Median seconds from a failure to the next first step. Failures while restarting prolong the mean.
        useful_share: Share of `step_seconds` that goodput counts.
    """

    step_seconds: float | None = None
    save_seconds: float | None = None
    restart_seconds: float | None = None
    useful_share: float = 1.0


def run_costs(run_time: RunTime) -> RunCosts:
    """Return the costs of a run's steps, saves and restarts."""
    parts = run_time.parts
    step_seconds = None
    useful_share = 1.0
    if run_time.kept_steps and parts[TimePart.NEW_STEPS]:
        # Interruptions repeat waits and evaluations like steps, so the same share of them belongs to kept steps.
        kept_share = parts[TimePart.NEW_STEPS] / (parts[TimePart.NEW_STEPS] + parts[TimePart.REPEATED_STEPS])
        beside = (
            parts[TimePart.DATA_WAITS]
            + parts[TimePart.EVALUATIONS]
            + parts[TimePart.REPORTING]
            + parts[TimePart.SKIPPED_STEPS]
            + parts[TimePart.OTHER]
        )
        seconds = parts[TimePart.NEW_STEPS] + kept_share * beside
        step_seconds = seconds / run_time.kept_steps
        useful_share = parts[TimePart.NEW_STEPS] / seconds
    save_seconds = None
    if run_time.num_saves:
        save_seconds = parts[TimePart.SAVES] / run_time.num_saves
    return RunCosts(step_seconds, save_seconds, _restart_seconds(run_time, step_seconds or 0.0), useful_share)


def _restart_seconds(run_time: RunTime, step_seconds: float) -> float | None:
    """Return the median seconds from a failure to the next first step, None without restarts.

    A fault is only noticed some time after it happened. Until then the step stays unfinished, for longer than the half step
    that a random moment would leave.
    """
    seconds = []
    for before, after in pairwise(run_time.processes):
        if after.has_clock:
            detection = max(0.0, before.parts[TimePart.REPEATED_STEPS] - step_seconds / 2)
            seconds.append(detection + sum(after.parts[part] for part in RESTART_PARTS))
    if not seconds:
        return None
    return median(seconds)
