"""DeepSpeed's configuration, derived from ours.

Does not import deepspeed, so that the planner can read it.
"""

from dataclasses import dataclass
from typing import Any

from megatape.config import ModelConfig, TrainingConfig, ZeroConfig


@dataclass(frozen=True)
class Stage3Limits:
    """Limits on gathered weights at ZeRO stage 3, in elements.

    Attributes:
        prefetch: Elements gathered ahead of use.
        max_live_parameters: Maximum elements gathered at any time.
        persistence_threshold: Largest size of a weight that is never sharded.
    """

    prefetch: int
    max_live_parameters: int
    persistence_threshold: int


def stage3_limits(model: ModelConfig, zero: ZeroConfig, tensor_size: int) -> Stage3Limits:
    """Return a run's limits. A rank prefetches one block's matrices, or a bucket if that is larger.

    DeepSpeed's defaults keep a billion weights gathered, which for most models is all of them, so stage 3 would save nothing.
    When prefetching less than a block, a GPU would wait for the network in large blocks. Vectors stay whole: sharding them
    saves less memory than gathering them costs latency.

    Args:
        model: Block sizes.
        zero: Bucket size.
        tensor_size: Tensor-parallel ranks.
    """
    attention_rows = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim  # query, key, value and output
    mlp_rows = 3 * model.mlp_size  # gate, up and down
    block = model.hidden_size * (attention_rows + mlp_rows) // tensor_size
    prefetch = max(block, zero.bucket_size)
    return Stage3Limits(prefetch, 2 * prefetch, persistence_threshold=model.hidden_size)


def deepspeed_config(
    training: TrainingConfig,
    zero: ZeroConfig,
    accumulation_steps: int,
    limits: Stage3Limits,
) -> dict[str, Any]:
    """Return DeepSpeed's configuration for a run.

    Args:
        training: Micro-batch size, gradient clipping and precision.
        zero: ZeRO stage, bucket size and offloading.
        accumulation_steps: Micro-batches per step on each rank, after the batch-size warm-up.
        limits: Limits on gathered weights at stage 3.
    """
    # At stage 0, DeepSpeed clips without reporting the norm, so Stage0 clips instead.
    gradient_clipping = 0.0
    if zero.stage:
        gradient_clipping = training.gradient_clip
    settings = {
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": accumulation_steps,
        "gradient_clipping": gradient_clipping,
        "zero_optimization": _zero_section(zero, limits),
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's optimizer for offloaded state needs a compiler. torch's AdamW does not.
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }
    if training.precision == "bfloat16":
        # By default DeepSpeed would sum gradients over micro-batches and ranks in bfloat16, losing small ones in large sums.
        # Without its check, whose kernels read every gradient, DeepSpeed calls the optimizer, and UpdateGate skips the step if
        # the norm is not finite.
        settings["bf16"] = {"enabled": True, "check_grad_overflow": False}
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
        settings["communication_data_type"] = "fp32"
    return settings


def _zero_section(zero: ZeroConfig, limits: Stage3Limits) -> dict[str, Any]:
    section: dict[str, Any] = {
        "stage": zero.stage,
        "overlap_comm": zero.overlap,
        "reduce_bucket_size": zero.bucket_size,
        "allgather_bucket_size": zero.bucket_size,
        "stage3_prefetch_bucket_size": limits.prefetch,
        "sub_group_size": zero.sub_group_size,
        "stage3_max_live_parameters": limits.max_live_parameters,
        # Release weights even if they are needed again soon. accounting/sharding/gathered_weights.py simulates this.
        "stage3_max_reuse_distance": 0,
        "stage3_param_persistence_threshold": limits.persistence_threshold,
        "zero_hpz_partition_size": zero.hpz_ranks,
    }
    if zero.offload_optimizer:
        section["offload_optimizer"] = {"device": "cpu"}
    if zero.offload_parameters:
        section["offload_param"] = {"device": "cpu"}
    return section
