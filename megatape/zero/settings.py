"""DeepSpeed's own configuration, derived from ours: nobody writes a value twice."""

from typing import Any

from megatape.config import Config


def deepspeed_config(config: Config, world_size: int) -> dict[str, Any]:
    """DeepSpeed's own configuration, derived from ours: nobody writes a value twice."""
    zero = config.zero
    section: dict[str, Any] = {
        "stage": zero.stage,
        "reduce_bucket_size": zero.bucket_size,
        "allgather_bucket_size": zero.bucket_size,
        "stage3_prefetch_bucket_size": zero.bucket_size,
        "sub_group_size": zero.sub_group_size,
        # DeepSpeed would keep a billion weights gathered ahead of their use and between forward and backward pass: for most models
        # that is all of them, and stage 3 would save nothing. Two buckets ahead hide the gathering as well.
        "stage3_max_live_parameters": 2 * zero.bucket_size,
        "stage3_max_reuse_distance": 0,
        # Vectors stay whole on every rank: gathering them would cost more in latency than dividing them saves.
        "stage3_param_persistence_threshold": config.model.hidden_size,
    }
    if zero.offload_optimizer:
        section["offload_optimizer"] = {"device": "cpu"}
    if zero.offload_parameters:
        section["offload_param"] = {"device": "cpu"}
    precision: dict[str, Any] = {}
    if config.training.precision == "bfloat16":
        # Otherwise micro-batches and ranks would be summed in bfloat16, where a small gradient vanishes beside a large sum.
        precision = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
    return precision | {
        "train_micro_batch_size_per_gpu": config.training.micro_batch_size,
        "gradient_accumulation_steps": config.accumulation(world_size),
        # At stage 0 in float32 DeepSpeed clips without telling the norm: Engine does it instead.
        "gradient_clipping": config.training.gradient_clip if zero.stage else 0.0,
        "zero_optimization": section,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's AdamW also when offloaded: DeepSpeed's needs a compiler
        "steps_per_print": None,
    }
