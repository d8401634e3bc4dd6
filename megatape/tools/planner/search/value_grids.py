"""Settings that the planner changes, and the values that it tries."""

from collections.abc import Iterable
from math import isqrt
from typing import Any, NamedTuple, get_args

from megatape.config import ActivationCheckpointing, ClusterConfig, Config, SettingValues, ZeroConfig

# Minimum number of tokens of a sample per rank. With fewer, ranks would exchange more than they compute.
MIN_TOKENS_PER_RANK = 1024
# Maximum number of tokens in a micro-batch. Beyond it, step times change by less than the error of the estimate.
MAX_MICRO_BATCH_TOKENS = 2**16


class ValueGrid(NamedTuple):
    """Values of one setting, or of several that change together.

    Attributes:
        keys: Settings, such as parallel.tp.
        points: Their values at each position.
    """

    keys: tuple[str, ...]
    points: tuple[tuple[Any, ...], ...]

    def settings(self, position: int) -> SettingValues:
        """Return the settings at a position."""
        return dict(zip(self.keys, self.points[position], strict=True))


class SettingIndex(NamedTuple):
    """Settings as positions on the grids of tensor-parallel ranks, ZeRO stages, and each ordered setting."""

    tensor: int
    stage: int
    steps: tuple[int, ...]

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions in the order of ValueGrids.all."""
        return (self.tensor, self.stage, *self.steps)

    @property
    def is_top(self) -> bool:
        """Whether these are the fastest settings with this tensor size and ZeRO stage."""
        return not any(self.steps)

    def needs_no_more_memory(self, other: "SettingIndex") -> bool:
        """Whether each setting saves at least as much memory as in `other`, at the same tensor size and ZeRO stage."""
        if (self.tensor, self.stage) != (other.tensor, other.stage):
            return False
        return all(step >= other_step for step, other_step in zip(self.steps, other.steps, strict=True))


class ValueGrids(NamedTuple):
    """Grids of all settings.

    Attributes:
        tensor: Tensor-parallel ranks. More may be faster or slower.
        stage: ZeRO stages. A higher one may be faster or slower.
        ordered: All other settings, from fast to slow. Each step saves memory.
    """

    tensor: ValueGrid
    stage: ValueGrid
    ordered: tuple[ValueGrid, ...]

    @property
    def all(self) -> tuple[ValueGrid, ...]:
        """All grids in the order of SettingIndex.positions."""
        return (self.tensor, self.stage, *self.ordered)

    def settings(self, index: SettingIndex) -> SettingValues:
        """Return all settings at an index."""
        settings: SettingValues = {}
        for grid, position in zip(self.all, index.positions, strict=True):
            settings |= grid.settings(position)
        return settings

    def index_of(self, config: Config) -> SettingIndex:
        """Return the index of a configuration, whose values must be on the grids."""
        positions = []
        for grid in self.all:
            values = _values_of(config, grid.keys)
            positions.append(grid.points.index(values))
        tensor, stage, *steps = positions
        return SettingIndex(tensor, stage, tuple(steps))


def value_grids(config: Config, machines: ClusterConfig) -> ValueGrids:
    """Return the grid of each setting. Every grid includes the configuration's value."""
    training = config.training
    parallel = config.parallel
    length = config.data.sequence_length

    max_samples = max(1, min(training.global_batch_size, MAX_MICRO_BATCH_TOKENS // length))
    micro_batches = {2**power for power in range(max_samples.bit_length())}
    micro_batches.add(training.micro_batch_size)

    max_ranks = max(1, length // MIN_TOKENS_PER_RANK)
    context_ranks = {size for size in _divisors(machines.world_size) if size <= max_ranks}
    sequence_ranks = {size for size in context_ranks if config.model.num_kv_heads % size == 0}

    return ValueGrids(
        tensor=_grid("parallel.tp", sorted({*_divisors(machines.gpus_per_node), parallel.tp})),
        stage=_grid("zero.stage", (0, 1, 2, 3)),
        ordered=(
            _grid("parallel.sp", sorted({*sequence_ranks, parallel.sp})),
            _grid("parallel.cp", sorted({*context_ranks, parallel.cp})),
            _grid("training.micro_batch_size", sorted(micro_batches, reverse=True)),
            _grid("training.activation_checkpointing", get_args(ActivationCheckpointing)),
            _offloading_grid(config.zero),
        ),
    )


def _grid(key: str, values: Iterable[Any]) -> ValueGrid:
    """Return the grid of a single setting."""
    points = tuple((value,) for value in values)
    return ValueGrid((key,), points)


def _offloading_grid(zero: ZeroConfig) -> ValueGrid:
    """Return the possible combinations of offloaded optimizer state and weights."""
    keys = ("zero.offload_optimizer", "zero.offload_parameters")
    configured = (zero.offload_optimizer, zero.offload_parameters)
    combinations = {(False, False), (True, False), (True, True), configured}
    return ValueGrid(keys, tuple(sorted(combinations)))


def _values_of(config: Config, keys: Iterable[str]) -> tuple[Any, ...]:
    values = []
    for key in keys:
        section, _, name = key.partition(".")
        values.append(getattr(getattr(config, section), name))
    return tuple(values)


def _divisors(number: int) -> list[int]:
    """Return all divisors in ascending order."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    large = [number // divisor for divisor in small]
    return sorted({*small, *large})
