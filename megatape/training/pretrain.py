"""From a configuration to a finished run, on one of its processes, once all ranks are given the same."""

import gc
import logging
import socket
import traceback
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError

from megatape.accounting.counts import count_parameters, count_trainable
from megatape.attention.attend import get_backend
from megatape.checkpoint.manifest import load_manifest
from megatape.config import Config, shared_values
from megatape.data.training.mixture import RunData, open_data
from megatape.distributed.agreement import find_disagreement
from megatape.distributed.exchange import exchange
from megatape.distributed.launchers import discover
from megatape.distributed.mesh import AXES
from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus, RankMismatch, UserError, path_errors
from megatape.imports import file_hashes
from megatape.model.smoke_test import attention_needs
from megatape.registry import SINKS
from megatape.reliability.lease import hold
from megatape.reliability.pace import WatchLimits, limits_of_environment
from megatape.reliability.run_log import show_lines
from megatape.reliability.shared_folder import share_secret
from megatape.reliability.watch import RankFailed, Watch
from megatape.run_folder import RunFolder
from megatape.training.memory import check_memory, memory_errors
from megatape.training.trainer import Start, Trainer
from megatape.utils.files import without_links
from megatape.utils.masking import mask
from megatape.utils.software import install_command, source_hash, versions
from megatape.utils.units import plural
from megatape.zero.distributed import initialize_distributed, shut_down

LOG = logging.getLogger(__name__)


def pretrain(
    config: Config, start: Start | None = None, limits: WatchLimits | None = None, ends_process: bool = False
) -> ExitStatus:
    """Train as configured on this process's rank.

    Args:
        config: of the run.
        start: where it begins, by default with a new run.
        limits: of the watch over the ranks, by default those of the environment.
        ends_process: whether the process ends afterwards. Once training has ended, it then ignores signals to stop: a second
            one would replace the exit status.

    Returns:
        The exit status. One rank of each host shows a UserError that all of them raise, and a rank its own.

    Raises:
        UserError: the launcher's or the limits' variables make no sense.
        Exception: any other error of this rank, which keeps its traceback. Where another rank failed first, its error is named
            instead, and the traceback is in the folder `hangs` of the run.
    """
    if not logging.getLogger("megatape").hasHandlers():  # a program of a user's own, which has not set up logging
        show_lines()
    gc.freeze()  # DeepSpeed forces collections, which need not visit what imports have made
    start = start or Start()
    limits = limits or limits_of_environment()
    topology = discover()
    folder = RunFolder(Path(config.run.directory))
    try:
        _meet(topology, limits, config.parallel.tp)
        with Watch(topology, limits, folder.stacks(topology.rank)) as watch, ExitStack() as resources:
            watch.authenticate(share_secret(folder.directory, topology))
            # Paths read and written before the first step come from the configuration, so errors about them are the user's.
            with path_errors(), memory_errors(config, topology):
                data = open_together(config, vars(start) | {"base": start.base and str(start.base)}, topology)
                check_memory(config, topology)
                lease = resources.enter_context(hold(folder.lease, topology))
                trainer = Trainer(config, data, topology, lease, start, watch.pace)
            LOG.info(introduction(trainer))
            with memory_errors(config, topology, lambda: trainer.num_steps):
                unfinished = trainer.train(ends_process)
        if unfinished:
            return ExitStatus.UNFINISHED
        return ExitStatus.DONE if trainer.state.step else ExitStatus.INTERRUPTED
    except UserError as error:
        if topology.local_rank == 0 or not error.everywhere:
            of = "" if topology.world_size == 1 or error.everywhere else f" on rank {topology.rank}"
            LOG.error("error%s: %s", of, error)
        LOG.debug("raised here:", exc_info=True)
        return error.status
    except RankFailed as error:
        if error.status == ExitStatus.DIED:
            LOG.error("error on rank %d: %s", topology.rank, error)
            _append(folder.stacks(topology.rank), mask(traceback.format_exc()))
        return ExitStatus(error.status)
    finally:
        shut_down()


def _meet(topology: Topology, limits: WatchLimits, tensor_size: int) -> None:
    """Join the process group. Raises UserError if the ranks cannot meet."""
    try:
        initialize_distributed(topology, limits.collectives, tensor_size)
    except (DistNetworkError, DistStoreError) as error:
        raise UserError(
            f"the ranks could not meet at MASTER_ADDR and MASTER_PORT: {str(error).splitlines()[0]}; did all of them start? If "
            "another run uses the port, choose another: deepspeed --master_port, or export MASTER_PORT"
        ) from error


def _append(path: Path, text: str) -> None:
    """Add the text to a file of the run, if that can be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8", opener=without_links) as file:
            file.write(text)


def open_together(config: Config, arguments: dict[str, Any], topology: Topology) -> RunData:
    """Open this rank's data. Collective.

    Args:
        config: of the run.
        arguments: of the command line beside the configuration, by name.
        topology: all ranks.

    Raises:
        RankMismatch: on all ranks, one of them cannot open its data, or configuration, arguments, code or data differ between
            ranks.
    """
    data = None
    fault = ""
    values = shared_values(config) | arguments | {"the code's hash": source_hash()[:12], "Python/torch/DeepSpeed": versions()}
    values |= {f"the hash of the module {name}": value[:12] for name, value in file_hashes().items()}
    try:
        config.accumulation(topology.world_size)
        if arguments["resume"] not in (None, "auto"):
            load_manifest(Path(arguments["resume"]))
        data = open_data(config)
        if topology.is_main:
            check_packages(config)
        values |= {f"the hash of the {name}": value[:12] for name, value in data.fingerprints.items()}
        values |= {
            f"the hash of the validation data{f' {name}' * bool(name)}": split.fingerprint[:12]
            for name, split in data.validation.items()
        }
    except (UserError, OSError) as error:
        fault = str(error)
    hosts, faults, values_of_ranks = zip(*exchange([socket.gethostname(), fault, values], topology), strict=True)
    if disagreement := find_disagreement(hosts, faults, values_of_ranks):
        raise RankMismatch(disagreement)
    assert data
    return data


def check_packages(config: Config) -> None:
    """Check that the packages of logging.sinks are installed.

    Raises:
        UserError: One is not.
    """
    for name in config.logging.sinks:
        if (package := SINKS[name].package) and find_spec(package) is None:
            raise UserError(
                f"logging.sinks has {name}, but its package {package} is not installed: install it by: "
                f"{install_command(package)}, or remove {name}"
            )


def introduction(run: Trainer) -> str:
    """What is about to be trained, in a few lines."""
    config = run.config
    model = run.config.model
    data = run.data.train
    count = count_parameters(model)
    samples = config.batches.consumed(config.training.steps)
    validation_tokens = sum(split.num_tokens for split in run.data.validation.values())
    axes = [axis for axis in AXES if axis in ("data", "tensor") or run.mesh[axis].size > 1]
    need = attention_needs(config, run.engine.device.type)[0]
    device = run.engine.device
    kernel = get_backend(run.attention).kernel_name(need, device) if device.type == "cuda" else ""
    return "\n".join(
        [
            (
                f"{model.encoding}: {count.total:,} parameters ({count.embedding:,} embedding and head, {count.position:,} "
                f"position), {plural(model.num_layers, 'layer')}, attention by {run.attention}{kernel and f' ({kernel})'}"
            ),
            *trained_share(config, count.total),
            (
                f"data: {', '.join(config.data.paths)}, {data.num_tokens:,} training tokens, "
                f"{validation_tokens:,} validation tokens"
            ),
            *([f"samples are {data.filled:.2%} full, the rest is padding"] if data.filled < 1 else []),
            *skipped_documents(run.data),
            *([f"mixture: {mixture}"] if (mixture := data.describe(samples)) else []),
            (
                f"baseline: unigram entropy of the training text {data.unigram_entropy:.4f} nats (a model above this loss "
                "uses no context)"
            ),
            (
                f"ZeRO stage {config.zero.stage} over {' x '.join(str(run.mesh[axis].size) for axis in axes)} "
                f"({' x '.join(axes)}) ranks on {run.engine.device.type}, {config.training.arithmetic}; "
                f"{config.training.global_batch_size} x {config.data.sequence_length} tokens a step; writing to "
                f"{run.folder.directory}"
            ),
        ]
    )


def skipped_documents(data: RunData) -> list[str]:
    """Return a line for each split with documents that are in no sample."""
    splits = [*data.train.corpora.values(), *data.validation.values()]
    return [
        f"{split.name}: {split.num_skipped:,} documents without data.prompt_end are skipped"
        for split in splits
        if split.num_skipped
    ]


def trained_share(config: Config, num_parameters: int) -> list[str]:
    """A line about how many of the parameters are trained, none if all are."""
    num_trained = count_trainable(config.model, config.training.trainable, config.training.frozen)
    if num_trained == num_parameters:
        return []
    return [f"trained: {num_trained:,} of {num_parameters:,} parameters ({num_trained / num_parameters:.2%})"]
