"""From a configuration to a finished run, on one of its processes."""

import gc
import sys
import traceback
from pathlib import Path

from safetensors import SafetensorError
from torch.distributed import DistNetworkError, DistStoreError

from megatape.config import Config
from megatape.data.best_fit_dataset import BestFitDataset
from megatape.data.mixture import Mixture
from megatape.errors import ExitStatus, UserError
from megatape.model.accounting import count_parameters
from megatape.run_folder import RunFolder
from megatape.runtime.launchers import discover
from megatape.runtime.lease import LeaseLost, hold
from megatape.runtime.watch import Limits, RankFailed, Watch, limits_of_environment
from megatape.training.agreement import CannotBegin, open_together
from megatape.training.loop import train
from megatape.training.output import say
from megatape.training.run import DataUnreadable, Run
from megatape.training.saves import NotSaved
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


def pretrain(
    config: Config,
    resume: str | None,
    profiled_steps: int = 0,
    allow_changes: bool = False,
    limits: Limits | None = None,
    base: Path | None = None,
) -> ExitStatus:
    """Train as configured, with a trace of `profiled_steps` steps. resume, allow_changes, base: as `Run` takes them. limits:
    of the watch over the ranks.

    Returns the exit status, after saying what is wrong if something is."""
    gc.freeze()  # DeepSpeed forces collections, which need not visit what imports have made
    prefix, training = "error", False
    try:
        topology = discover()
        if topology.world_size > 1:
            prefix = f"error on rank {topology.rank}"
        limits = limits or limits_of_environment()
        initialize_distributed(topology, limits.collectives)
        folder = RunFolder(Path(config.run.directory))
        with Watch(topology, limits, folder.stacks(topology.rank)) as watch:
            arguments = {
                "--resume": resume,
                "--base": str(base) if base else None,
                "--profile": profiled_steps,
                "--allow-changes": allow_changes,
            }
            data = open_together(config, arguments, topology)
            with hold(folder.lease, topology) as lease:
                run = Run(config, data, topology, lease, resume, allow_changes, base, watch.pace)
                if topology.is_main:
                    print(introduction(run), flush=True)
                training = True
                unfinished = train(run, profiled_steps)
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


def introduction(run: Run) -> str:
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
                f"baseline: unigram entropy of the training text {data.unigram_entropy:.4f} nats (a loss above it has learned "
                "no context)"
            ),
            (
                f"ZeRO stage {config.zero.stage} over {run.mesh.data.size} x {run.mesh.tensor.size} (data x tensor) ranks on "
                f"{run.engine.device.type}, {config.training.arithmetic}; "
                f"{config.training.global_batch_size} x {config.data.sequence_length} tokens a step; writing to "
                f"{run.folder.directory}"
            ),
        ]
    )
