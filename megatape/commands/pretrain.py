"""Trains a language model. Launched with one process per rank."""

from functools import partial

from megatape.commands.cli.deepspeed_setup import prepare_deepspeed
from megatape.commands.cli.running import show_flags
from megatape.commands.options.shared_options import ConfigOptions, FrozenBaseOptions, LaunchedOptions
from megatape.reliability.goodput.process_clock import ProcessClock
from megatape.reliability.orphan import deepspeed_launcher, stop_with_launcher
from megatape.reliability.standby import has_rank_pipe, wait_for_rank
from megatape.utils.values.options import option

EXAMPLE = "deepspeed --num_accelerators 2 launch/pretrain.py --config configs/tape_tiny.json"


class Options(LaunchedOptions, FrozenBaseOptions, ConfigOptions):
    """Options of a training run.

    Attributes:
        resume: resume from the run's newest valid checkpoint (auto), or from the checkpoint FOLDER
        allow_changes: resume even if settings changed that docs/config.md marks as `confirmed`,
            such as training.precision or optimizer.beta1
        profile: profile K steps, save the traces and print a summary
        dry_run: print the report of `megatape plan` instead of training
    """

    resume: str | None = option(None, metavar="auto|FOLDER")
    allow_changes: bool = False
    profile: int = option(0, ge=0, metavar="K")
    dry_run: bool = False


def run(options: Options) -> int:
    """Train. Returns the exit status."""
    config = options.load()
    if options.dry_run:
        from megatape.tools.planner.report.report import report

        print(report(config))
        return 0
    clock = ProcessClock.of_command(deepspeed_launcher())
    # Call this before importing torch, which takes seconds.
    stop_with_launcher()
    prepare_deepspeed(options.verbose)
    from megatape.training.pretrain import pretrain
    from megatape.training.start import Start
    from megatape.training.startup.build_trainer import import_callbacks

    if has_rank_pipe():
        import_callbacks(config.logging)
        clock = ProcessClock.of_rank(wait_for_rank())
    start = Start(options.resume, options.allow_changes, options.base, options.profile)
    return pretrain(config, start, ends_process=True, clock=clock, describe_error=partial(show_flags, Options))
