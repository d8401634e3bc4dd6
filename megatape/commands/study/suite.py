"""Compares position encodings on synthetic tasks that separate them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from megatape.commands.cli.output import ParagraphPrinter, print_paragraphs
from megatape.commands.options.shared_options import ImportOptions
from megatape.commands.options.study_options import RunsOptions
from megatape.errors import UserError, flag
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.run_folder import RunFolder
from megatape.utils.values.options import Count, Listed, Words, option

if TYPE_CHECKING:
    from megatape.lab.study.suite.plan import Plan

EXAMPLE = "megatape study suite --tasks flip_flop --encodings rope,tape --seeds 3 --output runs/suite"

# Options selecting runs, which a plan file replaces.
SELECTION = {"tasks", "encodings", "seeds", "size", "rates", "tuning_seeds", "fixed_rates", "test"}


class Options(RunsOptions, ImportOptions):
    """Tasks and encodings to compare, and how they are trained.

    Attributes:
        jobs: parallel runs, each with its share of the cores (default: one per core, or one per GPU;
            with --launcher 1)
        seeds: runs per task and encoding (default: 8; of demo 3)
        size: models and samples: demo for ten minutes of two cores, tiny for a core, deep for patterns
            of layers, small or base for a GPU
        plan: train the plan in a file written by --dry-run, perhaps edited; the folder then refuses
            every other plan
        dry_run: write the selected runs into the file of --plan (default: OUT/plan.json), training
            nothing
        cell: train only the task and encoding number K, counting from 0, as an array job's tasks do
        slurm: submit an array job with one task per task and encoding; options of sbatch, such as
            "--partition gpu --time 60"
        rates: learning rates to choose from for each task and encoding, on the validation split
            (default: the size's grid, docs/compare_encodings.md); a single rate needs no search
        tuning_seeds: runs for each learning rate of the search (default: 2)
        fixed_rates: search only these learning rates; otherwise, while the best one is at an end, the
            search adds the next one beyond it
        repeat: train N finished runs again, evenly spaced among all, and print how far their results
            are from the recorded ones
        test: test of all differences: permutation, which is exact for any scores and takes about
            eight seeds, or welch, a t-test, for fewer seeds of tasks that every seed learns
        engine: processes runs pretrain once for each run; one_process trains several runs in one
            process, faster and without checkpoints; auto takes it where it is known to compute the
            same, on a CPU
    """

    at_most_one = (("plan", "cell", "slurm"),)

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
    # The default depends on the machine.
    jobs: Count | None = option(None, metavar="J")  # type: ignore[assignment]
    seeds: Count | None = option(None, metavar="S")
    size: str = "tiny"
    plan: Path | None = option(None, metavar="FILE")
    dry_run: bool = False
    cell: int | None = option(None, metavar="K")
    slurm: Words | None = option(None, metavar="OPTIONS")
    rates: Listed[Annotated[float, Field(gt=0, lt=1)]] | None = option(None, metavar="A,B")
    tuning_seeds: Count | None = option(None, metavar="S")
    fixed_rates: bool = False
    repeat: Count | None = option(None, metavar="N")
    test: Literal["permutation", "welch"] = "permutation"
    engine: Literal["auto", "processes", "one_process"] = "auto"


def run(options: Options) -> None:
    """Train and score the models, and print the table. Or write the plan, or submit an array job."""
    from megatape.lab.study.execution.pool import RunPool, default_jobs
    from megatape.lab.study.execution.study import Study
    from megatape.lab.study.suite.design import begin_design
    from megatape.lab.study.suite.suite import repeat_runs, suite

    if options.dry_run:
        _write_plan(options)
        return
    if options.plan is not None:
        plan = _read_plan(options, options.plan)
        begin_design(plan, options.output)
    else:
        plan = _selected_plan(options)
    if options.slurm is not None:
        _refuse(options, ("repeat",), f"{flag('slurm')}, which trains all runs")
        _submit(options, plan, options.slurm)
        return
    jobs = options.jobs or default_jobs(options.launcher)
    study = Study(options.output, RunPool(jobs, options.launcher, options.engine), options.typed, ParagraphPrinter().print)
    if options.repeat is not None:
        _refuse(options, ("cell",), f"{flag('repeat')}, which chooses its runs")
        repeat_runs(plan, study, options.repeat)
        return
    suite(plan, study, options.cell)


def _refuse(options: Options, names: tuple[str, ...], other: str) -> None:
    """Raise UserError if one of these options is given beside another one, which `other` names with the reason."""
    for name in names:
        if name in options.model_fields_set:
            raise UserError(f"{flag(name)}: not allowed with {other}: remove one of them")


def _selected_plan(options: Options) -> "Plan":
    """Return the plan selected by the options."""
    from megatape.lab.study.suite.plan import TUNING_SEEDS, parse_plan

    plan = parse_plan(options.size, options.tasks, options.encodings, options.seeds, options.rates, options.test)
    return replace(plan, tuning_seeds=options.tuning_seeds or TUNING_SEEDS, fixed_rates=options.fixed_rates)


def _write_plan(options: Options) -> None:
    """Write the selected runs into a plan file, and print their description."""
    from megatape.lab.study.suite.plan import PLAN

    _refuse(options, ("cell", "slurm", "repeat"), f"{flag('dry_run')}, which trains nothing")
    plan = _selected_plan(options)
    file = options.plan or options.output / PLAN
    file.parent.mkdir(parents=True, exist_ok=True)
    plan.write(file)
    paragraphs = [plan.describe()]
    needed_seeds = plan.describe_needed_seeds()
    if needed_seeds is not None:
        paragraphs.append(needed_seeds)
    paragraphs.append(f"wrote {file}: edit it if you like, and train it with --plan {file}")
    print_paragraphs(paragraphs)


def _read_plan(options: Options, file: Path) -> "Plan":
    """Read a plan file. Raises UserError if other options also select runs."""
    from megatape.lab.study.suite.plan import read_plan

    conflicts = sorted(options.model_fields_set & SELECTION)
    if conflicts:
        raise UserError(f"{flag(conflicts[0])}: the file of {flag('plan')} has its own: remove one of them")
    return read_plan(file)


def _submit(options: Options, plan: "Plan", sbatch: str) -> None:
    """Submit an array job with a task for each pair of the plan.

    Args:
        options: Options of the command.
        plan: Plan selected by them.
        sbatch: Options of sbatch.
    """
    from megatape.tools.cluster.slurm.command_array import submit_array

    values = {
        "tasks": options.tasks,
        "encodings": options.encodings,
        "seeds": options.seeds,
        "size": options.size,
        "output": options.output.absolute(),
        "jobs": options.jobs,
        "rates": ",".join(str(rate) for rate in options.rates or ()),
        "launcher": options.launcher,
        "engine": options.engine,
        "tuning-seeds": options.tuning_seeds,
        "test": options.test,
    }
    words = ["study", "suite"]
    for name, value in values.items():
        if value:
            words += [f"--{name}", str(value)]
    if options.fixed_rates:
        words.append("--fixed-rates")
    job = submit_array("suite", words, len(plan.pairs), options.output, sbatch)
    logs = RunFolder(options.output).job_logs
    table = options.output / "suite.md"
    print(f"job {job}, {len(plan.pairs)} tasks; logs: {logs}; when all have ended: {table}")
