"""Engine options, derived from the configuration.

Does not import deepspeed.
"""

from dataclasses import dataclass
from typing import Any

from megatape.config import Config, OptimizerConfig, ZeroConfig
from megatape.zero.deepspeed_config import deepspeed_config, stage3_limits


@dataclass(frozen=True)
class EngineOptions:
    """Engine options.

    Attributes:
        zero: ZeRO stage, bucket size and offloading.
        optimizer: Optimizer kind and hyperparameters.
        gradient_clip: Maximum gradient norm, 0 for no clipping.
        memory_check_interval: Updates from one memory check to the next, 0 for none.
        deepspeed_config: DeepSpeed's own configuration.
    """

    zero: ZeroConfig
    optimizer: OptimizerConfig
    gradient_clip: float
    memory_check_interval: int
    deepspeed_config: dict[str, Any]


def engine_options(config: Config, world_size: int) -> EngineOptions:
    """Return the engine options for a run.

    Args:
        config: Run configuration.
        world_size: Number of ranks.

    Raises:
        ConfigError: Ranks or batches do not divide evenly.
    """
    limits = stage3_limits(config.model, config.zero, config.parallel.tp)
    accumulation_steps = config.num_micro_batches(world_size)
    return EngineOptions(
        zero=config.zero,
        optimizer=config.optimizer,
        gradient_clip=config.training.gradient_clip,
        memory_check_interval=config.training.memory_check_interval,
        deepspeed_config=deepspeed_config(config.training, config.zero, accumulation_steps, limits),
    )
