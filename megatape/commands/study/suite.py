"""megatape study suite: `megatape study suite --tasks flip_flop --encodings rope,tape --seeds 3 --out runs/suite`."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from megatape.commands.options import ImportOptions, RunsOptions
from megatape.errors import UserError
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.run_folder import RunFolder
from megatape.utils.options import Count, Listed, Paragraphs, Words, option

if TYPE_CHECKING:
    from megatape.lab.study.suite.plan import Plan


class Options(RunsOptions, ImportOptions):
    """Tasks and encodings to compare, and how they are trained.

    Attributes:
        jobs: runs in parallel, each with its share of the cores (default: one for each core, or for
            each GPU; with --launcher 1)
        seeds: runs per task and encoding (default: 5; of demo 3)
        size: models and samples: demo for ten minutes of two cores, tiny for a core, small or base
            for a GPU
        budget: plan what fits, by a timed pilot, down to a core of two tasks, four encodings and
            three seeds, print the plan and ask before it is trained (docs/suite.md; default: run
            everything)
        plan: train a plan that --budget wrote, perhaps edited
        yes: with --budget: train the plan without a question
        cell: train only the task and encoding number K, counted from 0, as the tasks of an array
            job do
        slurm: submit an array job with one task for each task and encoding; options of sbatch, as
            "--partition gpu --time 60"
        rates: learning rates, of which the best is chosen for each task and encoding on the
            validation split (default: the grid of the size, docs/suite.md); one alone is taken as
            it is
    """

    at_most_one = (("budget", "plan", "cell", "slurm"),)

    tasks: str | None = option(
        None,
        description=f"tasks (default: all; of demo two) of {', '.join(SYNTHETIC_TASKS)}",
        metavar="A,B",
        completions=tuple(SYNTHETIC_TASKS),
    )
    encodings: str | None = option(
        None,
        description=f"encodings (default: all; of demo four) of {', '.join(ENCODINGS)}",
        metavar="A,B",
        completions=tuple(ENCODINGS),
    )
    jobs: Count | None = option(None, metavar="J")  # type: ignore[assignment]  # its default follows from the machine
    seeds: Count | None = option(None, metavar="S")
    size: str = "tiny"
    budget: Count | None = option(None, metavar="MINUTES")
    plan: Path | None = option(None, metavar="FILE")
    yes: bool = False
    cell: int | None = option(None, metavar="K")
    slurm: Words | None = option(None, metavar="OPTIONS")
    rates: Listed[Annotated[float, Field(gt=0, lt=1)]] | None = option(None, metavar="A,B")


def run(options: Options) -> Paragraphs:
    """Train and score the models, print the table."""
    from megatape.lab.report.suite_page import write_page
    from megatape.lab.study.runs import Machine, default_jobs
    from megatape.lab.study.suite.plan import parse_plan, read_plan
    from megatape.lab.study.suite.run import suite

    if options.plan is not None:
        if given := sorted(options.model_fields_set & {"tasks", "encodings", "seeds", "size", "rates"}):
            raise UserError(f"{given[0]}: the file of `plan` has its own: remove one of them")
        plan = read_plan(options.plan)
    else:
        plan = options.fill(parse_plan)
    jobs = options.jobs or default_jobs(options.launcher)
    if options.budget is not None:
        confirmed = _confirm(options, plan, options.budget, jobs)
        if confirmed is None:
            print("nothing was trained")
            return ()
        plan = confirmed
    if options.slurm is not None:
        _submit(options, plan, options.slurm)
        return ()
    machine = Machine(jobs, options.launcher)
    return options.fill(suite, plan=plan, machine=machine, command=options.typed, write_page=write_page, only=options.cell)


def _confirm(options: Options, asked: "Plan", minutes: float, jobs: int) -> "Plan | None":
    """Print the plan that fits. Returns it, as the user may have edited it, or None if the user does not confirm it.

    Raises UserError if there is nobody to ask.
    """
    from megatape.lab.study.suite.plan import PLAN, propose, read_plan

    plan, text = propose(asked, options.out, minutes, jobs)
    file = options.out / PLAN
    print(f"{text}\n", flush=True)
    if options.yes:
        return plan
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(
            f"nothing was trained: train the plan by {options.typed} --yes; or edit {file} and give `plan` {file} in place of "
            "`budget`, `size`, `tasks`, `encodings`, `seeds` and `rates`"
        )
    print(f"It is in {file}: edit it if you like.")
    answer = ""
    with suppress(EOFError):  # Ctrl-D
        answer = input("Train it? [y/N] ")
    return read_plan(file) if answer.strip().lower() in ("y", "yes") else None


def _submit(options: Options, plan: "Plan", sbatch: str) -> None:
    """One array job for all tasks and encodings."""
    from megatape.tools.cluster.slurm import submit_array

    names = ("tasks", "encodings", "seeds", "size", "out", "jobs", "rates", "launcher")
    given = {name: getattr(options, name) for name in names}
    given |= {"out": options.out.absolute(), "rates": ",".join(map(str, options.rates or ()))}
    words = ["study", "suite", *(word for name, value in given.items() if value for word in (f"--{name}", str(value)))]
    job = submit_array(words, len(plan.pairs), options.out, sbatch)
    logs = RunFolder(options.out).job_logs
    table = options.out / "suite.md"
    print(f"job {job}, {len(plan.pairs)} tasks; logs: {logs}; when all have ended: {table}")
