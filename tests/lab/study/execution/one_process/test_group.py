"""Distribution of runs over processes."""

import copy
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.lab.study.execution.one_process.group import MAX_RUNS, make_groups
from megatape.lab.study.execution.run import Run
from megatape.lab.study.suite.scores.task_result import TaskResult

ENCODINGS = ("rope", "tape", "nope")
SEEDS = 4


@pytest.fixture
def runs(raw_config: dict[str, Any], tmp_path: Path) -> list[Run[TaskResult]]:
    """Runs of three encodings and two data directories, ordered by seed."""
    runs = []
    for seed in range(SEEDS):
        for data in ("copy", "sort"):
            for encoding in ENCODINGS:
                name = f"{data}, {encoding}, seed {seed}"
                raw = copy.deepcopy(raw_config)
                raw["model"]["encoding"] = encoding
                raw["data"]["path"] = data
                raw["run"]["directory"] = str(tmp_path / name)
                runs.append(Run(name, parse_config(raw, "test"), ["train"], (), TaskResult))
    return runs


def _names(runs: list[Run[TaskResult]], jobs: int, train_together: bool) -> list[list[str]]:
    """Return the names of the runs in each group."""
    groups = make_groups(runs, jobs, train_together)
    return [[run.name for run in group.runs] for group in groups]


@pytest.mark.parametrize("jobs", [1, 5])
@pytest.mark.parametrize("train_together", [False, True])
def test_every_run_is_in_one_group(runs: list[Run[TaskResult]], jobs: int, train_together: bool) -> None:
    groups = _names(runs, jobs, train_together)

    assert sorted(chain.from_iterable(groups)) == sorted(run.name for run in runs)
    assert len(groups) >= jobs
    assert max(map(len, groups)) <= MAX_RUNS


def test_groups_keep_the_order_of_the_runs(runs: list[Run[TaskResult]]) -> None:
    """The first seed of every row is trained before the third seed of any."""
    first, *_ = _names(runs, 1, train_together=False)

    assert {f"{data}, {encoding}, seed 0" for data in ("copy", "sort") for encoding in ENCODINGS} < set(first)
    assert [name.partition(",")[0] for name in first] == sorted(name.partition(",")[0] for name in first)


def test_runs_to_train_together_share_a_group(runs: list[Run[TaskResult]]) -> None:
    first, *_ = _names(runs, 1, train_together=True)

    assert len(first) == 2 * SEEDS
    assert len({name.rpartition(",")[0] for name in first}) == 2
