"""Starts a pretraining run, and restarts it if a rank dies."""

from pathlib import Path

from megatape.commands.cli.shared_options import ConfigOptions
from megatape.distributed.launch.launcher_logs import quiet_launcher
from megatape.imports import arguments
from megatape.utils.options import Count, option

EXAMPLE = "megatape supervise --restarts 5 --config configs/tape_1b.json -- deepspeed launch/pretrain.py"


class Options(ConfigOptions):
    """A run, and the command that starts it.

    Attributes:
        restarts: maximum number of restarts
        command: after --: command that starts `megatape pretrain` on all ranks; the options of the
            run are appended
    """

    restarts: Count = option(metavar="N")
    command: tuple[str, ...] = option(positional=True, metavar="COMMAND")


def run(options: Options) -> int:
    """Train, and start the run again after failures. Returns the last exit status."""
    from megatape.run_folder import RunFolder
    from megatape.tools.cluster.supervise.supervisor import supervise

    run_config = options.load().run
    folder = RunFolder(Path(run_config.directory))
    config = Path(options.config).absolute()
    command = [*quiet_launcher(options.command), *arguments(), "--config", str(config)]
    for override in options.set:
        command += ["--set", override]
    command += ["--resume", "auto"]
    return supervise(command, folder, options.restarts, ends_process=True)
