"""Base class of the ZeRO stages."""

import math
from abc import ABC, abstractmethod
from typing import Any

from deepspeed import DeepSpeedEngine
from torch import Tensor

from megatape.zero.stages.fragment import Fragment


class ZeroStage(ABC):
    """ZeRO stage: where it keeps tensors on this rank, and what it does in a step.

    Args:
        engine: DeepSpeed's engine.
    """

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = engine
        self._optimizer = engine.optimizer

    @abstractmethod
    def flats(self) -> list[Tensor]:
        """Return the tensors that the optimizer updates on this rank: from stage 1 on one per group (sub-group at stage 3)."""

    @abstractmethod
    def fragment(self, parameter: Any) -> Fragment | None:
        """Return the location of this rank's part of a parameter, without padding, or None if the rank has no part."""

    @abstractmethod
    def is_replicated(self, parameter: Any) -> bool:
        """Whether every data-parallel rank holds the same part."""

    def compute_weight(self, parameter: Any) -> Tensor:
        """Return the weight with which passes compute, as this rank keeps it between steps."""
        weight: Tensor = parameter.data
        return weight

    @abstractmethod
    def accumulated_gradient(self, parameter: Any) -> Tensor | None:
        """Return the gradient of this rank's part, between the last backward pass and the update. Trained parameters only.

        Returns:
            Accumulated gradient, averaged over the data-parallel ranks, or None if this rank has no part, or the parameter
            has no gradient.
        """

    @abstractmethod
    def set_accumulated_gradient(self, parameter: Any, value: Tensor) -> None:
        """Replace the elements of `accumulated_gradient`, which is not None, by `value` (float32 [elements])."""

    @abstractmethod
    def copy_masters_to_weights(self, parameters: list[Any]) -> None:
        """Copy trained master weights to the compute weights. Collective."""

    def local_squared_norm(self) -> Tensor | float:
        """Return this rank's part of the squared gradient norm; 0 from stage 1 on, where DeepSpeed computes the norm."""
        return 0.0

    def clip_gradients(self, squared_norm: float) -> None:  # noqa: B027 (only stage 0 clips)
        """Clip the gradients before DeepSpeed's step. Does nothing from stage 1 on, where DeepSpeed clips in its step.

        Args:
            squared_norm: Sum of all ranks' `local_squared_norm`.
        """

    def gradient_norm(self) -> float:
        """Return the gradient norm before clipping, NaN if it is not finite. Valid when DeepSpeed calls the optimizer."""
        norm = float(self._optimizer._global_grad_norm)
        # DeepSpeed marks a norm that is not finite by a negative one.
        if norm < 0 or not math.isfinite(norm):
            return math.nan
        return norm
