"""Checks all ranks before a run. Launched the way the run will be."""

from megatape.commands.cli.deepspeed_setup import prepare_deepspeed
from megatape.commands.options.shared_options import ConfigOptions, LaunchedOptions

EXAMPLE = "deepspeed --hostfile FILE launch/preflight.py --config FILE"


class Options(LaunchedOptions, ConfigOptions):
    """Run whose ranks are checked."""


def run(options: Options) -> int:
    """Check all ranks. Returns 2 if a check fails on any of them."""
    config = options.load()
    prepare_deepspeed(options.verbose)
    from megatape.tools.cluster.preflight.preflight import preflight

    return preflight(config)
