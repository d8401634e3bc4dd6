"""From a configuration to a finished run, on one of its processes."""

import sys
from pathlib import Path

from torch.distributed import DistNetworkError

from megatape.attention.operation import check
from megatape.checkpoint.manifest import load_manifest
from megatape.config import Config
from megatape.data.splits import open_data
from megatape.model.accounting import count_parameters
from megatape.model.attention import attention_need
from megatape.runtime.launchers import discover
from megatape.runtime.watch import STATUS, RankFailed, Watch
from megatape.training.interrupt import UNFINISHED
from megatape.training.loop import train
from megatape.training.run import Run
from megatape.zero.distributed import initialize_distributed, shut_down
from megatape.zero.engine import TrainingDiverged


def pretrain(config: Config, resume: str | None, profiled_steps: int = 0, allow_changes: bool = False) -> int:
    """Train as configured, with a trace of `profiled_steps` steps. resume, allow_changes: as `Run` takes them.

    Returns the exit status: 0, 2 after saying what is wrong, 1 when another rank failed, or UNFINISHED when a scheduler's signal
    ended it early."""
    speaks = True
    prefix = "error"
    try:
        topology = discover()
        # What every process of a host can see for itself need be told by one of them only.
        speaks = topology.local_rank == 0
        config.accumulation(topology.world_size)
        if resume not in (None, "auto"):
            load_manifest(Path(resume))
        data = open_data(config)
        device = initialize_distributed(topology)
        speaks, prefix = True, f"error on rank {topology.rank}" if topology.world_size > 1 else "error"
        with Watch(topology):
            check(attention_need(config, device.type), config.training.attention)
            run = Run(config, data, topology, resume, allow_changes)
            if topology.is_main:
                print(introduction(run), flush=True)
            unfinished = train(run, profiled_steps)
        return UNFINISHED if unfinished else 0
    except DistNetworkError as error:
        print(
            f"{prefix}: the ranks could not meet at MASTER_ADDR and MASTER_PORT: {str(error).splitlines()[0]}; if another run uses "
            "the port, choose another: deepspeed --master_port, or export MASTER_PORT",
            file=sys.stderr,
            flush=True,
        )
        return 2
    except (ValueError, OSError, TrainingDiverged) as error:
        if speaks:
            print(f"{prefix}: {error}", file=sys.stderr, flush=True)
        return 2
    except RankFailed as error:
        print(f"{prefix}: {error}", file=sys.stderr, flush=True)
        return STATUS
    finally:
        shut_down()


def introduction(run: Run) -> str:
    """What is about to be trained, in a few lines."""
    config, model, data = run.config, run.config.model, run.data.train
    count = count_parameters(model)
    return "\n".join(
        [
            (
                f"{model.encoding}: {count.total:,} parameters ({count.embedding:,} embedding and head, {count.position:,} position), "
                f"{model.num_layers} layers, attention by {run.attention}"
            ),
            f"data: {config.data.path}, {data.num_tokens:,} training tokens, {run.data.validation.num_tokens:,} validation tokens",
            f"baseline: unigram entropy of the training text {data.unigram_entropy:.4f} nats (a loss above it has learned no context)",
            (
                f"ZeRO stage {config.zero.stage} over {run.mesh.data.size} x {run.mesh.tensor.size} (data x tensor) ranks on {run.engine.device.type}, {config.training.precision}; "
                f"{config.training.global_batch_size} x {config.data.sequence_length} tokens a step; writing to {run.folder.directory}"
            ),
        ]
    )
