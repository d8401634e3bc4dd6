"""What DeepSpeed is given: its configuration, derived from ours, the mesh, and the optimizer.

Does not import deepspeed, so that the planner can read it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

from megatape.config import Config
from megatape.distributed.mesh import Mesh


@dataclass(frozen=True)
class Stage3Limits:
    """When ZeRO stage 3 gathers and releases weights, in elements.

    prefetch: gathered ahead of use. max_live: the most that is gathered at any time. always_whole: weights up to this size
    are never divided.
    """

    prefetch: int
    max_live: int
    always_whole: int


def stage3_limits(config: Config) -> Stage3Limits:
    """The limits of a run: what is gathered ahead is a block's matrices, or a bucket if that is more.

    DeepSpeed's defaults keep a billion weights gathered, ahead of use and between forward and backward pass.
    For most models that is all of them, and stage 3 would save nothing. With less than a block ahead, a GPU would wait for the
    network in large blocks. Vectors stay whole: gathering them would cost more latency than dividing them saves memory.
    """
    model = config.model
    width = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim + 3 * model.mlp_size  # q, k, v, o; gate, up, down
    block = model.hidden_size * width // config.parallel.tp
    ahead = max(block, config.zero.bucket_size)
    return Stage3Limits(ahead, 2 * ahead, always_whole=model.hidden_size)


def deepspeed_config(config: Config, world_size: int) -> dict[str, Any]:
    """DeepSpeed's configuration of a run."""
    zero = config.zero
    limits = stage3_limits(config)
    section: dict[str, Any] = {
        "stage": zero.stage,
        "overlap_comm": zero.overlap,
        "reduce_bucket_size": zero.bucket_size,
        "allgather_bucket_size": zero.bucket_size,
        "stage3_prefetch_bucket_size": limits.prefetch,
        "sub_group_size": zero.sub_group_size,
        "stage3_max_live_parameters": limits.max_live,
        # Weights are released however soon they are used again, as accounting/zero3.py simulates.
        "stage3_max_reuse_distance": 0,
        "stage3_param_persistence_threshold": limits.always_whole,
        "zero_hpz_partition_size": zero.hpz_ranks,
    }
    if zero.offload_optimizer:
        section["offload_optimizer"] = {"device": "cpu"}
    if zero.offload_parameters:
        section["offload_param"] = {"device": "cpu"}
    precision: dict[str, Any] = {}
    if config.training.precision == "bfloat16":
        # By default gradients would be summed over micro-batches and ranks in bfloat16, where small
        # ones are lost in large sums.
        precision = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
    return precision | {
        "train_micro_batch_size_per_gpu": config.training.micro_batch_size,
        "gradient_accumulation_steps": config.accumulation(world_size),
        # At stage 0 in float32 DeepSpeed clips without reporting the norm, so Engine clips instead.
        "gradient_clipping": config.training.gradient_clip if zero.stage else 0.0,
        "zero_optimization": section,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's AdamW even when offloaded: DeepSpeed's needs a compiler
        "steps_per_print": None,
    }


class Mpu:
    """The mesh behind the interface that DeepSpeed calls "mpu": the part of it that training uses.

    The tensor axis is "model parallel" in DeepSpeed's terms, and context- and sequence-parallel ranks are
    data-parallel ones.

    DeepSpeed's own sequence_parallel_size is not used: this way every stage sums the gradients of all ranks.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        return self.mesh["tensor"].group

    def get_model_parallel_rank(self) -> int:
        return self.mesh["tensor"].rank

    def get_model_parallel_world_size(self) -> int:
        return self.mesh["tensor"].size

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        return self.mesh["replicate"].group

    def get_data_parallel_world_size(self) -> int:
        return self.mesh["replicate"].size


class GatedOptimizer(Optimizer):
    """Passes `step` on to an optimizer if the step is to be taken: only then weights change.

    DeepSpeed calls its client's optimizer once for each group of parameters, when the gradient is
    reduced and clipped. It skips the call for a norm that is not finite in some combinations of stage
    and precision only, and never for a reason of ours.

    Parameter groups and state are those of the inner optimizer, so the constructor of the base class,
    which would make others, is not called.

    Args:
        inner: the optimizer that updates weights.
        admits: asked before each update, whether the step is to be taken.
        finish: called after each update.
    """

    def __init__(self, inner: Optimizer, admits: Callable[[], bool], finish: Callable[[], None]) -> None:
        self.inner = inner
        self.admits = admits
        self.finish = finish

    def step(self, *arguments: Any, **options: Any) -> None:  # type: ignore[override]
        """Update weights if the step is to be taken."""
        if self.admits():
            self.inner.step(*arguments, **options)
            self.finish()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the inner optimizer; DeepSpeed replaces them while it updates one of several."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
