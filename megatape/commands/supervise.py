"""megatape supervise: megatape supervise --restarts 5 --config configs/tape_1b.json -- deepspeed launch/pretrain.py"""

import argparse

from megatape.commands import options
from megatape.imports import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_config(parser)
    parser.add_argument(
        "--restarts", type=options.positive, required=True, metavar="N", help="start the run again at most N times"
    )
    parser.add_argument(
        "command", nargs="+", metavar="COMMAND", help="after --: what starts pretrain, to which the rest is added"
    )


def run(args: argparse.Namespace) -> int:
    """Run until the end. Returns the last status."""
    from pathlib import Path

    from megatape.cluster.restarts import supervise
    from megatape.run_folder import RunFolder

    folder = RunFolder(Path(options.read_config(args).run.directory))
    overrides = [word for item in args.set for word in ("--set", item)]
    command = [*args.command, *arguments(), "--config", args.config, *overrides, "--resume", "auto"]
    return supervise(command, folder, args.restarts)
