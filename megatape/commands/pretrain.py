"""megatape pretrain: deepspeed --num_accelerators 2 launch/pretrain.py --config configs/tape_tiny.json"""

import argparse

from megatape.commands import options
from megatape.errors import UserError
from megatape.runtime.parent import stop_with_launcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_config(parser)
    parser.add_argument(
        "--resume", metavar="auto|FOLDER", help="resume from the run's newest valid checkpoint (auto) or from this checkpoint"
    )
    options.add_base(parser)
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="resume although training.precision, training.fp8, optimizer.beta1 or beta2 changed",
    )
    parser.add_argument(
        "--profile", type=int, default=0, metavar="K", help="profile K steps, save the traces and print a summary"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the report of `megatape plan` and exit")
    options.add_launched(parser)


def run(args: argparse.Namespace) -> int:
    """Train. Returns the status of megatape.training.pretrain.pretrain."""
    config = options.read_config(args)
    if args.profile < 0:
        raise UserError(f"--profile {args.profile}: give the number of steps to profile, 0 for none")
    if args.dry_run:
        from megatape.plan.report import report

        print(report(config))
        return 0
    stop_with_launcher()  # before torch is imported, which takes long
    options.prepare_deepspeed(args.verbose)
    from megatape.training.pretrain import pretrain
    from megatape.training.trainer import Start

    return pretrain(config, Start(args.resume, args.allow_changes, args.base, args.profile))
