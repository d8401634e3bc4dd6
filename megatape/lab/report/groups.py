"""Groups of runs that differ only in their seed. A group shares a line in every chart."""

import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from megatape.lab.report.charts import rounded
from megatape.lab.report.run import Run

# Maximum number of intervals in a clock.
MAX_INTERVALS = 200


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, and the label of their line."""

    label: str
    runs: list[Run]


def group_runs(runs: list[Run]) -> list[Group]:
    """Return groups of runs with equal validation samples and configurations, apart from training.seed and the section run."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_without_seed(run)].append(run)
    labels = [_label(members) for members in groups.values()]
    if len(set(labels)) < len(labels):
        labels = [", ".join(run.name for run in members) for members in groups.values()]
    return [Group(label, members) for label, members in zip(labels, groups.values(), strict=True)]


@dataclass(frozen=True)
class Clock:
    """Converts a group's steps to tokens and hours.

    Attributes:
        steps: Some steps, ascending.
        tokens: Number of tokens until each step.
        hours: Training hours until each step, averaged over the runs.
    """

    steps: list[float]
    tokens: list[int]
    hours: list[float | None]


def make_clock(group: Group) -> Clock:
    """Return a group's clock."""
    longest = max(group.runs, key=lambda run: run.last_step)
    knots = np.unique(np.linspace(0, longest.last_step, MAX_INTERVALS + 1).astype(int))
    hours_by_run = []
    for run in group.runs:
        steps = np.concatenate([[0], run.metrics["step"]])
        seconds = np.concatenate([[0], np.nancumsum(run.metrics["seconds"])])
        hours_by_run.append(np.interp(knots, steps, seconds / 3600))
    sequence_length = longest.config.data.sequence_length
    return Clock(
        steps=[float(knot) for knot in knots],
        tokens=[longest.samples(int(knot)) * sequence_length for knot in knots],
        hours=[rounded(hours) for hours in np.mean(hours_by_run, 0)],
    )


def _without_seed(run: Run) -> str:
    """Return a text that is equal for runs of one group."""
    config = run.config.model_dump()
    del config["run"]
    del config["training"]["seed"]
    return json.dumps([config, run.selection])


def _label(runs: list[Run]) -> str:
    """Label a group with the common part of its runs' names."""
    if len(runs) == 1:
        return runs[0].name
    words = os.path.commonprefix([re.split(r"([\W_]+)", run.name) for run in runs])
    common = re.sub(r"[\W_]*(seed)?[\W_]*$", "", "".join(words))
    if not common and words:
        # Names such as seed-1 and seed-2.
        common = runs[0].folder.directory.parent.name
    elif not common:
        common = runs[0].name
    seeds = {run.config.training.seed for run in runs}
    noun = "seeds" if len(seeds) == len(runs) else "runs"
    return f"{common} ({len(runs)} {noun})"
