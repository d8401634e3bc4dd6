"""megatape preflight, launched the way the run will be: deepspeed --hostfile FILE launch/preflight.py --config FILE"""

import argparse

from megatape.commands import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_config(parser)
    options.add_launched(parser)


def run(args: argparse.Namespace) -> int:
    """Check all ranks. Returns 2 if a check fails on any of them."""
    config = options.read_config(args)
    options.prepare_deepspeed(args.verbose)
    from megatape.cluster.preflight import preflight

    return preflight(config)
