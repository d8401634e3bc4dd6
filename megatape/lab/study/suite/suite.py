"""Trains and scores a small model for each synthetic task, encoding and seed.

OUT/data/TASK/                          data directory of a task
OUT/config/TASK.json                    configuration that the runs of a task share
OUT/baselines/TASK.jsonl                scores of the task's baselines
OUT/TASK/ENCODING/rate-0.001/seed-1/    a run of `megatape pretrain`, with its log.txt; seed-0 is for the choice of the rate
    scores.json                         its scores
OUT/plan.json                           the plan of --dry-run
OUT/results.jsonl                       all scores but those of seed 0
OUT/suite.md, suite.html                their tables, and a page with pictures
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

from megatape.errors import UserError
from megatape.lab.processes import interruptible
from megatape.lab.study.execution.lock import locked_study
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import Run, raise_failures
from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.runs.experiment import Experiment
from megatape.lab.study.suite.runs.task_folder import TaskFolder
from megatape.lab.study.suite.scores.model_scores import Scores
from megatape.lab.study.suite.sizes import SIZES
from megatape.lab.study.suite.tables.result_files import ResultFiles, WritePage


def suite(
    plan: Plan,
    out: Path,
    pool: RunPool,
    command: str,
    write_page: WritePage,
    only: int | None = None,
) -> Iterator[str]:
    """Execute the missing runs and write the tables. An interrupted call writes the tables of the finished runs.

    Args:
        plan: Tasks, encodings, seeds and learning rates.
        out: Folder of the suite.
        pool: Executes the runs.
        command: Command line of the user, for the tables.
        write_page: `write_page` of megatape/lab/report/suite_page.py.
        only: Number of the only task and encoding to train, as a task of an array job. The tables have all of them.

    Yields:
        Messages about the progress, then the tables.

    Raises:
        UserError: `out` holds other definitions, sizes or shapes. No run has started.
        RunsFailed: Some runs failed; the others are complete.
    """
    folders = {task: TaskFolder(out, task, SIZES[plan.size]) for task in plan.tasks}
    for folder in folders.values():
        folder.check()
    experiments = [Experiment(folders[task], encoding, plan.rates) for task, encoding in plan.pairs]
    if only is None:
        selected = experiments
        locked_folder = out
    else:
        if not 0 <= only < len(experiments):
            raise UserError(f"cell is {only}: the tasks and encodings have the numbers 0 to {len(experiments) - 1}")
        selected = [experiments[only]]
        locked_folder = experiments[only].directory

    results = ResultFiles(experiments, plan, out, command, write_page)
    with interruptible(), locked_study(locked_folder) as lock:
        try:
            runs, failures = yield from _finish(selected, plan, pool, out, lock)
        except KeyboardInterrupt:
            results.write(lock_folder=only is not None)
            raise
        yield results.write(lock_folder=only is not None)
    raise_failures(failures, runs)


def _finish(
    experiments: list[Experiment],
    plan: Plan,
    pool: RunPool,
    out: Path,
    lock: IO[bytes],
) -> Generator[str, None, tuple[list[Run[Scores]], list[str]]]:
    """Execute the missing runs of the experiments. Returns all runs, and an error for each failed one."""
    for folder in dict.fromkeys(experiment.folder for experiment in experiments):
        yield f"preparing {folder.data}"
        folder.prepare()
        folder.baselines()

    searches: list[Run[Scores]] = []
    for experiment in experiments:
        searches += experiment.search(pool)
    failures: list[str] = []
    if searches:
        failures += yield from pool.finish(searches, out, lock)

    rates = {}
    for experiment in experiments:
        rate = experiment.chosen_rate()
        if rate is not None:
            rates[experiment] = rate
    runs = []
    # Ordered by seed, so that every task and every encoding has results early.
    for seed in plan.seed_range:
        runs += [experiment.run(pool, rate, seed) for experiment, rate in rates.items()]
    failures += yield from pool.finish(runs, out, lock)
    return [*searches, *runs], failures
