"""Where each ZeRO stage keeps a rank's share of the master weights."""

from typing import Any

import deepspeed
from torch import Tensor

from megatape.zero import internals
from megatape.zero.internals import Fragment


class Layout:
    """Division of master weights and optimizer state over the data axis. At stage 0, as here, the parameters are the masters.

    Args:
        engine: of the run.
    """

    def __init__(self, engine: deepspeed.DeepSpeedEngine) -> None:
        self._engine, self._optimizer = engine, engine.optimizer

    def flats(self) -> list[Tensor]:
        """Tensors that the optimizer updates on this rank."""
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def fragment(self, parameter: Any) -> Fragment | None:
        """Where this rank keeps its part of a parameter; None if it has no part."""
        return Fragment(0, parameter, 0, parameter.numel())

    def is_replicated(self, parameter: Any) -> bool:
        """Whether every data-parallel rank holds the same part."""
        return True

    def publish(self, parameters: list[Any]) -> None:
        """Copy the masters of trained parameters to the compute weights. Collective."""


class Stage12(Layout):
    """The masters of a group are one flat tensor, of which every rank holds a run; compute weights are whole."""

    def flats(self) -> list[Tensor]:
        return internals.flat_masters(self._optimizer, 2)

    def fragment(self, parameter: Any) -> Fragment | None:
        is_whole = not parameter.requires_grad
        return super().fragment(parameter) if is_whole else internals.fragment_of_partition(self._optimizer, parameter)

    def is_replicated(self, parameter: Any) -> bool:
        return not parameter.requires_grad

    def publish(self, parameters: list[Any]) -> None:
        internals.update_compute_weights(self._optimizer)


class Stage3(Layout):
    """Every parameter is divided into runs of equal size, the last one padded; compute weights too."""

    def flats(self) -> list[Tensor]:
        return internals.flat_masters(self._optimizer, 3)

    def fragment(self, parameter: Any) -> Fragment | None:
        return internals.fragment_of_shard(self._optimizer, parameter)

    def is_replicated(self, parameter: Any) -> bool:
        return False

    def publish(self, parameters: list[Any]) -> None:
        self._engine.empty_partition_cache()  # of steps before: small weights stay gathered
        for parameter in parameters:
            internals.update_compute_shard(parameter, internals.fragment_of_shard(self._optimizer, parameter).values())


LAYOUTS: dict[int, type[Layout]] = {0: Layout, 1: Stage12, 2: Stage12, 3: Stage3}
