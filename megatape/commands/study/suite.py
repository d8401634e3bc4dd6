"""megatape study suite: `megatape study suite --tasks flip_flop --encodings rope,tape --seeds 3 --out runs/suite`."""

from typing import TYPE_CHECKING

from megatape.commands.options import ImportOptions, RunsOptions
from megatape.commands.study import show_resumable
from megatape.options import Count, option
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.run_folder import RunFolder

if TYPE_CHECKING:
    from megatape.study.suite.plan import Plan


class Options(RunsOptions, ImportOptions):
    """Tasks and encodings to compare, and how they are trained."""

    at_most_one = (("budget", "cell", "slurm"),)

    tasks: str = option(f"tasks, or all of {', '.join(SYNTHETIC_TASKS)}", "all", metavar="A,B")
    encodings: str = option(f"encodings, or all of {', '.join(ENCODINGS)}", "all", metavar="A,B")
    seeds: Count = option("runs per task and encoding", 5, metavar="S")
    size: str = option("size of models and samples: tiny for a core, small or base for a GPU", "tiny")
    budget: Count | None = option(
        "skip what does not fit, by a timed pilot, down to a core of two tasks, four encodings and three seeds "
        "(docs/suite.md; default: run everything)",
        None,
        metavar="MINUTES",
    )
    cell: int | None = option(
        "train only the task and encoding number K, counted from 0, as the tasks of an array job do", None, metavar="K"
    )
    slurm: str | None = option(
        'submit an array job with one task for each task and encoding; options of sbatch, as "--partition gpu --time 60"',
        None,
        metavar="OPTIONS",
    )
    rates: str | None = option(
        "learning rates, of which the best is chosen for each task and encoding on the validation split (default: the "
        "grid of the size, docs/suite.md); one alone is taken as it is",
        None,
        metavar="A,B",
    )


def run(options: Options) -> int:
    """Train and score the models, print the table."""
    from megatape.report.suite_page import write_page
    from megatape.study.suite.plan import parse_plan
    from megatape.study.suite.run import suite

    plan = options.fill(parse_plan)
    if options.slurm is not None:
        return _submit(options, plan, options.slurm)
    study = options.fill(suite, plan=plan, command=options.typed, write_page=write_page, only=options.cell)
    return show_resumable(study)


def _submit(options: Options, plan: "Plan", sbatch: str) -> int:
    """One array job for all tasks and encodings."""
    from megatape.cluster.array import submit_array

    words = ["study", "suite", "--tasks", options.tasks, "--encodings", options.encodings, "--seeds", str(options.seeds)]
    words += ["--size", options.size, "--out", str(options.out.absolute()), "--jobs", str(options.jobs)]
    for name, value in (("--rates", options.rates), ("--launcher", options.launcher)):
        words += [name, value] if value else []
    job = submit_array(words, "--cell", len(plan.pairs), options.out, "suite", sbatch)
    logs, table = RunFolder(options.out).job_logs, options.out / "suite.md"
    print(f"job {job}, {len(plan.pairs)} tasks; logs: {logs}; when all have ended: {table}")
    return 0
