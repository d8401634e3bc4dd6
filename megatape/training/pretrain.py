"""Training on one rank, from the launcher's variables to the exit status."""

import gc
import logging
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from torch.distributed import DistNetworkError, DistStoreError

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.fitting_change import smallest_fitting_change
from megatape.checkpoint.format.manifest import load_manifest
from megatape.config import Config, shared_values
from megatape.data.training.run_data import RunData, open_data
from megatape.distributed.launch.launchers import set_up_ranks
from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus, UserError, path_errors
from megatape.reliability.goodput.parts import TimePart
from megatape.reliability.goodput.process_clock import ProcessClock
from megatape.reliability.lease import hold
from megatape.reliability.shared_folder import share_secret
from megatape.reliability.watch.rank_errors import RankFailed
from megatape.reliability.watch.timeouts import WatchTimeouts, timeouts_of_environment
from megatape.reliability.watch.watch import watch_ranks
from megatape.run_folder import RunFolder
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.startup.memory.memory_check import check_memory
from megatape.training.startup.memory.memory_errors import explained_memory_errors
from megatape.training.startup.memory.memory_plan import MemoryPlan
from megatape.training.startup.rank_agreement import open_together
from megatape.utils.files.files import without_links
from megatape.utils.text.terminal import show_log
from megatape.utils.text.url_secrets import mask_secrets
from megatape.zero.setup.process_group import initialize_distributed, shut_down

LOG = logging.getLogger(__name__)


def pretrain(
    config: Config,
    start: Start | None = None,
    timeouts: WatchTimeouts | None = None,
    ends_process: bool = False,
    clock: ProcessClock | None = None,
    describe_error: Callable[[UserError], str] = str,
) -> ExitStatus:
    """Train as configured, on this process's rank.

    Args:
        config: Configuration.
        start: Starting point, by default a new run.
        timeouts: Watch timeouts, by default from the environment.
        ends_process: Whether the process ends afterwards. It then ignores signals to stop once training has ended, because a
            second one would replace the exit status.
        clock: Clock of this process, by default a new one.
        describe_error: Returns the message to print for a UserError. A command shows options by their flags.

    Returns:
        The exit status. A UserError is printed by one rank of each host if all ranks raise it, else by the rank raising it.

    Raises:
        UserError: The launcher's variables or DEEPSPEED_TIMEOUT are invalid.
        Exception: Any other error of this rank. If another rank failed first, that error is printed instead, and this rank's
            traceback is in the folder `hangs` of the run directory.
    """
    if not logging.getLogger("megatape").hasHandlers():
        # A user's own program has not set up logging.
        show_log()
    # DeepSpeed forces garbage collections. They need not visit objects created by imports.
    gc.freeze()
    clock = clock or ProcessClock()
    clock.begin(TimePart.RENDEZVOUS)
    start = start or Start()
    timeouts = timeouts or timeouts_of_environment()
    topology = set_up_ranks()
    folder = RunFolder(Path(config.run.directory))
    try:
        _join_process_group(topology, timeouts, config.parallel.tp)
        return _train(config, start, timeouts, ends_process, topology, folder, clock)
    except UserError as error:
        if topology.local_rank == 0 or not error.everywhere:
            where = ""
            if topology.world_size > 1 and not error.everywhere:
                where = f" on rank {topology.rank}"
            LOG.error("error%s: %s", where, describe_error(error))
        LOG.debug("raised here:", exc_info=True)
        return error.status
    except RankFailed as error:
        if error.status == ExitStatus.DIED:
            LOG.error("error on rank %d: %s", topology.rank, error)
            _append(folder.stacks(topology.rank), mask_secrets(traceback.format_exc()))
        return ExitStatus(error.status)
    finally:
        shut_down()


def _join_process_group(topology: Topology, timeouts: WatchTimeouts, tensor_size: int) -> None:
    """Join the process group of all ranks.

    Raises:
        UserError: The ranks cannot connect to each other.
    """
    try:
        initialize_distributed(topology, timeouts.collectives, tensor_size)
    except (DistNetworkError, DistStoreError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the ranks could not connect to each other at MASTER_ADDR and MASTER_PORT: {reason}; did all of them "
            "start? If another run uses the port, choose another: deepspeed --master_port, or export MASTER_PORT"
        ) from error


def _train(
    config: Config,
    start: Start,
    timeouts: WatchTimeouts,
    ends_process: bool,
    topology: Topology,
    folder: RunFolder,
    clock: ProcessClock,
) -> ExitStatus:
    """Open the data, take the lease, build a trainer and train, all inside the watch."""
    memory = MemoryPlan(
        topology,
        partial(TrainingLayout.from_config, config, topology.world_size),
        partial(smallest_fitting_change, config, topology.world_size),
    )

    def open_rank() -> RunData:
        config.check_divides(topology.world_size)
        if start.checkpoint is not None:
            load_manifest(start.checkpoint)
        return open_data(config.data, config.training, config.evaluation, config.model.vocab_size)

    with watch_ranks(topology, timeouts, folder.stacks(topology.rank)) as watch, ExitStack() as resources:
        watch.authenticate(share_secret(folder.directory, topology))
        clock.begin(TimePart.SETUP)
        # Before the first step all paths come from the configuration, so errors about them are the user's.
        with path_errors(), explained_memory_errors(memory):
            settings = shared_values(config) | start.shared_values()
            data = open_together(settings, open_rank, config.logging.sinks, topology)
            check_memory(memory)
            lease = resources.enter_context(hold(folder.lease, topology))
            trainer = build_trainer(config, data, topology, lease, start, watch.pace, clock)
        with explained_memory_errors(memory, lambda: trainer.num_steps):
            unfinished = trainer.train(ends_process)
    if unfinished:
        return ExitStatus.UNFINISHED
    if trainer.progress.step == 0:
        return ExitStatus.INTERRUPTED
    return ExitStatus.DONE


def _append(path: Path, text: str) -> None:
    """Append text to a file, ignoring errors."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8", opener=without_links) as file:
            file.write(text)
