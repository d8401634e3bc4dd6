"""Starts a pretraining run, and restarts it if a rank dies."""

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from megatape.commands.options.shared_options import ConfigOptions
from megatape.distributed.launch.launcher_logs import quiet_launcher
from megatape.errors import UserError, flag
from megatape.imports import arguments
from megatape.search_path import PACKAGE_FOLDER
from megatape.utils.values.options import Count, option

if TYPE_CHECKING:
    from collections.abc import Callable

    from megatape.run_folder import RunFolder
    from megatape.tools.cluster.supervise.ended_command import RunningCommand

EXAMPLE = "megatape supervise --restarts 5 --config configs/tape_1b.json -- deepspeed launch/pretrain.py"


class Options(ConfigOptions):
    """A run, and the command that starts it.

    Attributes:
        restarts: maximum number of restarts
        ranks: start this number of ranks on this machine without a launcher, whose own start would
            delay each restart
        standby: keep a standby process for each of --ranks, which has imported everything and takes the
            rank's place after a failure; costs the memory of an idle process for each rank
        command: after --, unless --ranks is given: command that starts `megatape pretrain` on all
            ranks; the options of the run are appended
    """

    restarts: Count = option(metavar="N")
    ranks: Count | None = option(None, metavar="N")
    standby: bool = False
    command: tuple[str, ...] = option((), positional=True, metavar="COMMAND")


def run(options: Options) -> int:
    """Train, and start the run again after failures. Returns the last exit status."""
    from megatape.run_folder import RunFolder
    from megatape.tools.cluster.supervise.supervisor import supervise

    run_config = options.load().run
    folder = RunFolder(Path(run_config.directory))
    with ExitStack() as resources:
        start = _starter(options, folder, resources)
        return supervise(start, folder, options.restarts, ends_process=True)


def _starter(options: Options, folder: "RunFolder", resources: ExitStack) -> "Callable[[], RunningCommand]":
    """Return a function that starts the ranks.

    Raises:
        UserError: There are two ways to start them, or none.
    """
    from megatape.tools.cluster.supervise.local_launcher import LocalLauncher
    from megatape.tools.cluster.supervise.supervised_command import SupervisedCommand

    config = Path(options.config).absolute()
    words = [*arguments(), "--config", str(config)]
    for override in options.set:
        words += ["--set", override]
    words += ["--resume", "auto"]
    if options.ranks is None:
        if not options.command:
            raise UserError(
                f"nothing starts the ranks: give {flag('ranks')}, or after -- a command that starts `megatape pretrain`"
            )
        if options.standby:
            raise UserError(f"{flag('standby')} needs {flag('ranks')}: other launchers start processes of their own")
        return partial(SupervisedCommand, [*quiet_launcher(options.command), *words])
    if options.command:
        raise UserError(f"{flag('ranks')} starts ranks without a launcher: give it or a command after --, not both")
    program = Path(PACKAGE_FOLDER, "megatape", "__main__.py")
    command = [sys.executable, "-P", str(program), "pretrain", *words]
    launcher = LocalLauncher(command, options.ranks, config, options.standby, folder)
    return resources.enter_context(launcher).start
