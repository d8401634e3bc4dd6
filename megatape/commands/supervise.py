"""megatape supervise: `megatape supervise --restarts 5 --config configs/tape_1b.json -- deepspeed launch/pretrain.py`."""

from pathlib import Path

from megatape.commands.options import ConfigOptions
from megatape.distributed.launchers import quiet_launcher
from megatape.imports import arguments
from megatape.utils.options import Count, option


class Options(ConfigOptions):
    """A run, and how it is started.

    Attributes:
        restarts: start the run again at most N times
        command: after --: what starts pretrain, to which the rest is added
    """

    restarts: Count = option(metavar="N")
    command: tuple[str, ...] = option(positional=True, metavar="COMMAND")


def run(options: Options) -> int:
    """Run until the end. Returns the last status."""
    from megatape.run_folder import RunFolder
    from megatape.tools.cluster.supervisor import supervise

    folder = RunFolder(Path(options.load().run.directory))
    overrides = [word for item in options.set for word in ("--set", item)]
    config = str(Path(options.config).absolute())
    command = [*quiet_launcher(options.command), *arguments(), "--config", config, *overrides, "--resume", "auto"]
    return supervise(command, folder, options.restarts, ends_process=True)
