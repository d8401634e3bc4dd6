"""Settings that the planner may change, and the values that it tries."""

from collections.abc import Iterable
from math import isqrt
from typing import Any, get_args

from megatape.config import ActivationCheckpointing, ClusterConfig, Config, ZeroConfig

Setting = dict[str, Any]  # section.key -> value, of one setting or of some that change together
ValueGrid = list[Setting]  # values of one setting, or of some that change together
SettingIndex = tuple[int, ...]  # position on each grid

SECTIONS = ("parallel", "zero", "training")  # sections of the configuration with the settings

# The first two grids (tensor-parallel ranks, ZeRO stage) have no order: a higher value may be faster or slower. The others go
# from fast to slow, and each step saves memory.
NUM_UNORDERED = 2

# Minimum number of tokens of a sample per rank. With fewer, ranks would exchange more than they compute.
MIN_TOKENS_PER_RANK = 1024
MAX_MICRO_BATCH_TOKENS = 2**16  # Beyond it, step times change by less than the error of the estimate.


def value_grids(config: Config, machines: ClusterConfig) -> list[ValueGrid]:
    """Return the grid of each setting. Every grid includes the value of the configuration."""
    training = config.training
    parallel = config.parallel
    length = config.data.sequence_length

    max_samples = max(1, min(training.global_batch_size, MAX_MICRO_BATCH_TOKENS // length))
    micro_batches = {2**power for power in range(max_samples.bit_length())}
    micro_batches.add(training.micro_batch_size)

    max_ranks = max(1, length // MIN_TOKENS_PER_RANK)
    context_ranks = {size for size in _divisors(machines.world_size) if size <= max_ranks}
    sequence_ranks = {size for size in context_ranks if config.model.num_kv_heads % size == 0}

    values: dict[str, Iterable[Any]] = {
        "parallel.tp": sorted({*_divisors(machines.gpus_per_node), parallel.tp}),
        "zero.stage": (0, 1, 2, 3),
        "parallel.sp": sorted({*sequence_ranks, parallel.sp}),
        "parallel.cp": sorted({*context_ranks, parallel.cp}),
        "training.micro_batch_size": sorted(micro_batches, reverse=True),
        "training.activation_checkpointing": get_args(ActivationCheckpointing),
    }
    grids = [[{key: value} for value in values_of_key] for key, values_of_key in values.items()]
    grids.append(_offloading_grid(config.zero))
    return grids


def _offloading_grid(zero: ZeroConfig) -> ValueGrid:
    """Return the combinations of offloaded optimizer state and weights."""
    combinations = {(False, False), (True, False), (True, True), (zero.offload_optimizer, zero.offload_parameters)}
    grid = []
    for optimizer, parameters in sorted(combinations):
        grid.append({"zero.offload_optimizer": optimizer, "zero.offload_parameters": parameters})
    return grid


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, in ascending order."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    large = [number // divisor for divisor in small]
    return sorted({*small, *large})
