"""Trains and scores a small model for each synthetic task, encoding and seed.

OUT/data/TASK/                          data directory of a task
OUT/config/TASK.json                    configuration shared by the task's runs
OUT/baselines/TASK.jsonl                baseline scores
OUT/TASK/ENCODING/rate-0.001/seed-1/    a run of `megatape pretrain`, with its log.txt; seeds 0 and 10000 choose the rate
    scores.json                         its TaskResult
OUT/plan.json                           plan written by --dry-run
OUT/repeated/                           runs that --repeat trained again
OUT/design.json                         plan of a suite that was started with --plan
OUT/results.jsonl                       records of all runs except those that choose a rate, and of the baselines
OUT/suite.md, suite.html                tables, and a page with pictures
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from megatape.errors import UserError, flag
from megatape.lab.study.execution.lock import locked_study
from megatape.lab.study.execution.run import Run
from megatape.lab.study.execution.study import Execution, Study
from megatape.lab.study.suite.design import check_design
from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.runs.experiment import Experiment
from megatape.lab.study.suite.runs.repeated import repeat
from megatape.lab.study.suite.runs.task_folder import TaskFolder
from megatape.lab.study.suite.scores.task_result import TaskResult
from megatape.lab.study.suite.sizes import SIZES
from megatape.lab.study.suite.tables.result_files import write_results
from megatape.lab.study.suite.tables.suite_results import read_results


def suite(plan: Plan, study: Study, only: int | None = None) -> None:
    """Execute the missing runs, then write and show the tables. An interrupted call writes the tables of the finished runs.

    Args:
        plan: Tasks, encodings, seeds and learning rates.
        study: Folder and resources.
        only: Number of a task and encoding, to train only that pair as a task of an array job. The tables show all pairs.

    Raises:
        UserError: The folder holds other definitions, sizes or shapes, or follows another design. No run has started.
        RunsFailed: Some runs failed; the others are complete.
    """
    design = check_design(plan, study.output)
    experiments = _experiments(plan, study.output)
    selected = experiments
    locked_folder = study.output
    tables_lock: AbstractContextManager[object] = nullcontext()
    if only is not None:
        if not 0 <= only < len(experiments):
            raise UserError(f"{flag('cell')} is {only}: the tasks and encodings have the numbers 0 to {len(experiments) - 1}")
        selected = [experiments[only]]
        locked_folder = experiments[only].directory
        # Tasks of an array job write one at a time.
        tables_lock = locked_study(study.output, wait=True)

    def write_tables() -> str:
        with tables_lock:
            results = read_results(experiments, plan, study.command, design)
            return write_results(results, study.output)

    with study.begin(locked_folder) as execution:
        try:
            _finish(selected, plan, study, execution)
        except KeyboardInterrupt:
            write_tables()
            raise
        study.show(write_tables())
    execution.raise_failures()


def repeat_runs(plan: Plan, study: Study, count: int) -> None:
    """Repeat some finished runs, and show how far their results are from the recorded ones. Arguments as in `repeat`."""
    check_design(plan, study.output)
    experiments = _experiments(plan, study.output)
    for folder in dict.fromkeys(experiment.task_folder for experiment in experiments):
        folder.prepare()
    repeat(experiments, plan, study, count)


def _experiments(plan: Plan, out: Path) -> list[Experiment]:
    """Return the plan's experiments. Raises UserError if existing data has another definition or size."""
    folders = {task: TaskFolder(out, task, SIZES[plan.size]) for task in plan.tasks}
    for folder in folders.values():
        folder.check()
    return [Experiment(folders[task], encoding, plan.grid) for task, encoding in plan.pairs]


def _finish(experiments: list[Experiment], plan: Plan, study: Study, execution: Execution) -> None:
    """Prepare the data, search the learning rates, then run all seeds."""
    for folder in dict.fromkeys(experiment.task_folder for experiment in experiments):
        study.show(f"preparing {folder.data}")
        folder.prepare()
        folder.read_baselines()

    _search_rates(experiments, study, execution)
    rates = {}
    for experiment in experiments:
        rate = experiment.read_search().chosen
        if rate is not None:
            rates[experiment] = rate
    runs = []
    # Ordered by seed, so that every task and every encoding has results early.
    for seed in plan.seed_range:
        runs += [experiment.run(study.pool, rate, seed) for experiment, rate in rates.items()]
    execution.finish(runs)


def _search_rates(experiments: list[Experiment], study: Study, execution: Execution) -> None:
    """Search the learning rates, until the best one of each experiment has neighbors on both sides, or its runs fail."""
    unfinished = [experiment for experiment in experiments if experiment.grid.is_searched]
    while unfinished:
        tried = {experiment: experiment.read_search().rates for experiment in unfinished}
        searches: list[Run[TaskResult]] = []
        for experiment in unfinished:
            searches += experiment.search_runs(study.pool)
        execution.finish(searches)
        unfinished = [experiment for experiment in unfinished if experiment.read_search().rates != tried[experiment]]
