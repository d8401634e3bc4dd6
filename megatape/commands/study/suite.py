"""megatape study suite: megatape study suite --tasks flip_flop --encodings rope,tape --seeds 3 --out runs/suite"""

import argparse
from typing import TYPE_CHECKING

from megatape.commands import options
from megatape.commands.study import show
from megatape.errors import UserError
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.run_folder import RunFolder

if TYPE_CHECKING:
    from megatape.study.suite.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--tasks", default="all", metavar="A,B", help=f"tasks, or all of {', '.join(SYNTHETIC_TASKS)} (default %(default)s)"
    )
    parser.add_argument(
        "--encodings", default="all", metavar="A,B", help=f"encodings, or all of {', '.join(ENCODINGS)} (default %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="S", help="runs per task and encoding (default %(default)s)")
    parser.add_argument(
        "--size", default="tiny", help="of models and samples: tiny for a core, small or base for a GPU (default %(default)s)"
    )
    parser.add_argument(
        "--budget",
        type=options.positive,
        metavar="MINUTES",
        help="leave out what does not fit, by a timed pilot, from a core of two tasks, four encodings and three seeds on "
        "(docs/suite.md; default: run everything)",
    )
    parser.add_argument(
        "--cell",
        type=int,
        metavar="K",
        help="train only the task and encoding number K, counted from 0, as the tasks of an array job do",
    )
    parser.add_argument(
        "--slurm",
        metavar="OPTIONS",
        help='submit an array job with one task for each task and encoding; options of sbatch, as "--partition gpu --time 60"',
    )
    parser.add_argument(
        "--rates",
        metavar="A,B",
        help="learning rates, of which the best is chosen for each task and encoding on the validation split (default: the "
        "grid of the size, docs/suite.md); one alone is taken as it is",
    )
    options.add_import(parser)
    options.add_runs(parser)


def run(args: argparse.Namespace) -> int:
    """Train and score the models, print the table."""
    from megatape.report.suite_page import write_page
    from megatape.study.suite.plan import parse_plan
    from megatape.study.suite.run import suite

    plan = parse_plan(args.size, args.tasks, args.encodings, args.seeds, args.rates)
    if (args.budget, args.cell, args.slurm).count(None) < 2:
        raise UserError("--budget, --cell and --slurm each say what is trained here: give one of them")
    if args.slurm is not None:
        return _submit(args, plan)
    study = suite(plan, args.out, args.jobs, args.launcher, args.typed, write_page, args.budget, args.cell)
    try:
        return show(study)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same command again to continue") from None


def _submit(args: argparse.Namespace, plan: "Plan") -> int:
    """One array job for all tasks and encodings."""
    from megatape.cluster.array import submit_array

    words = ["study", "suite", "--tasks", args.tasks, "--encodings", args.encodings, "--seeds", str(args.seeds)]
    words += ["--size", args.size, "--out", str(args.out.absolute()), "--jobs", str(args.jobs)]
    for name, value in (("--rates", args.rates), ("--launcher", args.launcher)):
        words += [name, value] if value else []
    job = submit_array(words, "--cell", len(plan.pairs), args.out, "suite", args.slurm)
    print(f"job {job}, {len(plan.pairs)} tasks; logs: {RunFolder(args.out).job_logs}; when all have ended: {args.out}/suite.md")
    return 0
