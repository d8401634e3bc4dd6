"""Where each ZeRO stage keeps a rank's share of the master weights."""

from collections.abc import Callable
from typing import Any, Protocol

import deepspeed
from torch import Tensor

from megatape.zero.internals import (
    Fragment,
    flat_masters,
    fragment_of_partition,
    fragment_of_shard,
    update_compute_shard,
    update_compute_weights,
)


class Layout(Protocol):
    """How one or two stages divide master weights and optimizer state over the data axis."""

    def flats(self) -> list[Tensor]:
        """Tensors that the optimizer updates on this rank."""

    def fragment(self, parameter: Any) -> Fragment | None:
        """Where this rank keeps its part of a parameter; None if it has no part."""

    def is_replicated(self, parameter: Any) -> bool:
        """Whether every data-parallel rank holds the same part."""

    def publish(self, parameters: list[Any]) -> None:
        """Copy the masters of trained parameters to the compute weights. Collective."""


class Stage0:
    """Every rank holds all of it: the parameters are the masters."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine) -> None:
        self._optimizer = engine.optimizer

    def flats(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def fragment(self, parameter: Any) -> Fragment | None:
        return _whole(parameter)

    def is_replicated(self, parameter: Any) -> bool:
        return True

    def publish(self, parameters: list[Any]) -> None:
        pass


class Stage12:
    """The masters of a group are one flat tensor, of which every rank holds a run; compute weights are whole."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine) -> None:
        self._optimizer = engine.optimizer

    def flats(self) -> list[Tensor]:
        return flat_masters(self._optimizer, 2)

    def fragment(self, parameter: Any) -> Fragment | None:
        return fragment_of_partition(self._optimizer, parameter) if parameter.requires_grad else _whole(parameter)

    def is_replicated(self, parameter: Any) -> bool:
        return not parameter.requires_grad

    def publish(self, parameters: list[Any]) -> None:
        update_compute_weights(self._optimizer)


class Stage3:
    """Every parameter is divided into runs of equal size, the last one padded; compute weights too."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine) -> None:
        self._engine = engine

    def flats(self) -> list[Tensor]:
        return flat_masters(self._engine.optimizer, 3)

    def fragment(self, parameter: Any) -> Fragment | None:
        return fragment_of_shard(self._engine.optimizer, parameter)

    def is_replicated(self, parameter: Any) -> bool:
        return False

    def publish(self, parameters: list[Any]) -> None:
        self._engine.empty_partition_cache()  # of steps before: small weights stay gathered
        for parameter in parameters:
            held = fragment_of_shard(self._engine.optimizer, parameter)
            update_compute_shard(parameter, held.flat.data.narrow(0, held.offset, held.size))


def _whole(parameter: Any) -> Fragment:
    return Fragment(0, parameter, 0, parameter.numel())


LAYOUTS: dict[int, Callable[[deepspeed.DeepSpeedEngine], Layout]] = {0: Stage0, 1: Stage12, 2: Stage12, 3: Stage3}
