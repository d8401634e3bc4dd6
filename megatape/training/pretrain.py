"""From a configuration to a finished run, on one of its processes."""

import gc
import sys
from pathlib import Path

from torch.distributed import DistNetworkError, DistStoreError

from megatape.config import Config
from megatape.data.best_fit_dataset import BestFitDataset
from megatape.data.mixture import Mixture
from megatape.errors import ExitStatus
from megatape.model.accounting import count_parameters
from megatape.run_folder import RunFolder
from megatape.runtime.launchers import discover
from megatape.runtime.lease import hold
from megatape.runtime.watch import STATUS, Limits, RankFailed, Watch, limits_of_environment
from megatape.training.agreement import CannotBegin, open_together
from megatape.training.interrupt import UNFINISHED
from megatape.training.loop import train
from megatape.training.output import say
from megatape.training.run import Run
from megatape.training.saves import NotSaved
from megatape.zero.distributed import initialize_distributed, shut_down
from megatape.zero.engine import TrainingDiverged


def pretrain(
    config: Config,
    resume: str | None,
    profiled_steps: int = 0,
    allow_changes: bool = False,
    limits: Limits | None = None,
    base: Path | None = None,
) -> int:
    """Train as configured, with a trace of `profiled_steps` steps. resume, allow_changes, base: as `Run` takes them. limits:
    of the watch over the ranks.

    Returns the exit status: 0, 2 after saying what is wrong, 1 when another rank failed, NOT_SAVED when the last checkpoint
    could not be written, or UNFINISHED when a signal that came not from a user at the keyboard ended it early."""
    gc.freeze()  # DeepSpeed forces collections, which need not visit what imports have made
    prefix = "error"
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
                unfinished = train(run, profiled_steps)
        return UNFINISHED if unfinished else 0
    except (DistNetworkError, DistStoreError) as error:
        say(
            f"{prefix}: the ranks could not meet at MASTER_ADDR and MASTER_PORT: {str(error).splitlines()[0]}; did all of them "
            "start? If another run uses the port, choose another: deepspeed --master_port, or export MASTER_PORT",
            sys.stderr,
        )
        return 2
    except CannotBegin as error:
        if topology.local_rank == 0:  # all ranks know it: one of each host tells
            say(f"error: {error}", sys.stderr)
        return 2
    except NotSaved as error:
        say(f"{prefix}: {error}", sys.stderr)
        return ExitStatus.NOT_SAVED
    except (ValueError, OSError, TrainingDiverged) as error:
        say(f"{prefix}: {error}", sys.stderr)
        return 2
    except RankFailed as error:
        say(f"{prefix}: {error}", sys.stderr)
        return STATUS
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
                f"ZeRO stage {config.zero.stage} over {run.mesh['data'].size} x {run.mesh['tensor'].size} (data x tensor) "
                f"ranks on {run.engine.device.type}, {config.training.arithmetic}; {config.training.global_batch_size} x "
                f"{config.data.sequence_length} tokens a step; writing to {run.folder.directory}"
            ),
        ]
    )
