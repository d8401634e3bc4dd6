"""From a configuration to a finished run, on one of its processes."""

import gc
import sys
import traceback
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch.distributed import DistNetworkError, DistStoreError

from megatape.checkpoint.manager import NotSaved
from megatape.config import Config
from megatape.data.best_fit_dataset import BestFitDataset
from megatape.data.mixture import Mixture
from megatape.errors import ExitStatus, UserError
from megatape.model.accounting import count_parameters
from megatape.run_folder import RunFolder
from megatape.runtime.launchers import discover
from megatape.runtime.lease import LeaseLost, hold
from megatape.runtime.output import say
from megatape.runtime.watch import Limits, RankFailed, Watch, limits_of_environment
from megatape.training.agreement import CannotBegin, open_together
from megatape.training.trainer import DataUnreadable, Start, Trainer
from megatape.zero.distributed import initialize_distributed, shut_down
from megatape.zero.engine import TrainingDiverged

# Errors of training whose message says all. Any other one shows its traceback, and the run has died.
STATUSES: dict[type[Exception], ExitStatus] = {
    UserError: ExitStatus.USER_ERROR,
    LeaseLost: ExitStatus.USER_ERROR,
    TrainingDiverged: ExitStatus.DIVERGED,
    NotSaved: ExitStatus.NOT_SAVED,
    DataUnreadable: ExitStatus.DIED,
    RankFailed: ExitStatus.DIED,
}


def pretrain(config: Config, start: Start | None = None, limits: Limits | None = None) -> ExitStatus:
    """Train as configured on this process's rank.

    Args:
        config: of the run.
        start: where it begins, by default with a new run.
        limits: of the watch over the ranks, by default those of the environment.

    Returns:
        The exit status, after saying what is wrong if something is.
    """
    gc.freeze()  # DeepSpeed forces collections, which need not visit what imports have made
    start = start or Start()
    prefix, training = "error", False
    try:
        topology = discover()
        if topology.world_size > 1:
            prefix = f"error on rank {topology.rank}"
        limits = limits or limits_of_environment()
        initialize_distributed(topology, limits.collectives)
        folder = RunFolder(Path(config.run.directory))
        with Watch(topology, limits, folder.stacks(topology.rank)) as watch:
            data = open_together(config, start_arguments(start), topology)
            with hold(folder.lease, topology) as lease:
                trainer = Trainer(config, data, topology, lease, start, watch.pace)
                if topology.is_main:
                    print(introduction(trainer), flush=True)
                training = True
                unfinished = trainer.train()
        return ExitStatus.UNFINISHED if unfinished else ExitStatus.DONE
    except tuple(STATUSES) as error:
        say(f"{prefix}: {error}", sys.stderr)
        return next(status for kind, status in STATUSES.items() if isinstance(error, kind))
    except (DistNetworkError, DistStoreError) as error:
        if training:
            raise
        say(
            f"{prefix}: the ranks could not meet at MASTER_ADDR and MASTER_PORT: {str(error).splitlines()[0]}; did all of them "
            "start? If another run uses the port, choose another: deepspeed --master_port, or export MASTER_PORT",
            sys.stderr,
        )
        return ExitStatus.USER_ERROR
    except CannotBegin as error:
        if topology.local_rank == 0:  # all ranks know it: one of each host tells
            say(f"error: {error}", sys.stderr)
        return ExitStatus.USER_ERROR
    except (ValueError, OSError, SafetensorError) as error:
        say(f"{prefix}: {traceback.format_exc() if training else error}", sys.stderr)
        return ExitStatus.DIED if training else ExitStatus.USER_ERROR
    finally:
        shut_down()


def start_arguments(start: Start) -> dict[str, Any]:
    """What all ranks must be given alike beside the configuration, by option."""
    return {
        "resume": start.resume,
        "base": str(start.base) if start.base else None,
        "profile": start.profiled_steps,
        "allow_changes": start.allow_changes,
    }


def introduction(run: Trainer) -> str:
    """What is about to be trained, in a few lines."""
    config, model, data = run.config, run.config.model, run.data.train
    count, samples = count_parameters(model), config.training.steps * config.training.global_batch_size
    return "\n".join(
        [
            (
                f"{model.encoding}: {count.total:,} parameters ({count.embedding:,} embedding and head, {count.position:,} "
                f"position), {model.num_layers} layers, attention by {run.attention}"
            ),
            (
                f"data: {', '.join(config.data.paths)}, {data.num_tokens:,} training tokens, "
                f"{run.data.num_validation_tokens:,} validation tokens"
            ),
            *([f"samples are {data.filled:.2%} full, the rest is padding"] if isinstance(data, BestFitDataset) else []),
            *([f"mixture: {data.describe(samples)}"] if isinstance(data, Mixture) else []),
            (
                f"baseline: unigram entropy of the training text {data.unigram_entropy:.4f} nats (a model above this loss "
                "uses no context)"
            ),
            (
                f"ZeRO stage {config.zero.stage} over {run.mesh['data'].size} x {run.mesh['tensor'].size} (data x tensor) "
                f"ranks on {run.engine.device.type}, {config.training.arithmetic}; {config.training.global_batch_size} x "
                f"{config.data.sequence_length} tokens a step; writing to {run.folder.directory}"
            ),
        ]
    )
