"""ZeRO stage 0: every rank holds everything."""

import math
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from torch import Tensor, nn

from megatape.distributed.mesh import Mesh
from megatape.nn.parameters import is_sharded
from megatape.zero.stages.fragment import Fragment, unsharded_fragment
from megatape.zero.stages.stage import ZeroStage


class Stage0(ZeroStage):
    """Stage without sharding. Parameters are master weights and compute weights at once.

    DeepSpeed would clip float32 gradients without reporting their norm, so this class computes the norm and clips.

    Args:
        engine: DeepSpeed's engine.
        mesh: Mesh over all ranks.
        gradient_clip: Maximum gradient norm, 0 for no clipping.
    """

    def __init__(self, engine: DeepSpeedEngine, mesh: Mesh, gradient_clip: float) -> None:
        super().__init__(engine)
        self._mesh = mesh
        self._gradient_clip = gradient_clip
        self._parameters: list[Any] = list(engine.module.parameters())
        self._device = torch.device(engine.device)
        self._norm = math.nan

    def flats(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def fragment(self, parameter: Any) -> Fragment:
        return unsharded_fragment(parameter)

    def is_replicated(self, parameter: Any) -> bool:
        return True

    def accumulated_gradient(self, parameter: Any) -> Tensor | None:
        gradient: Tensor | None = parameter.grad
        return gradient

    def set_accumulated_gradient(self, parameter: Any, value: Tensor) -> None:
        parameter.grad.copy_(value.view_as(parameter.grad))

    def copy_masters_to_weights(self, parameters: list[Any]) -> None:
        """Do nothing: the parameters are both."""

    def local_squared_norm(self) -> Tensor:
        replicated = torch.zeros((), device=self._device)
        sharded = torch.zeros((), device=self._device)
        for parameter in self._parameters:
            if parameter.grad is None:
                continue
            square = parameter.grad.float().square().sum()
            if is_sharded(parameter):
                sharded += square
            else:
                replicated += square
        # Divide what several ranks hold by their number, so that the sum over all ranks counts every element once.
        tensor_part = sharded.double() + replicated.double() / self._mesh["tensor"].size
        return tensor_part / self._mesh["replicate"].size

    def clip_gradients(self, squared_norm: float) -> None:
        self._norm = squared_norm**0.5
        if self._gradient_clip:
            total_norm = torch.tensor(self._norm, device=self._device)
            nn.utils.clip_grads_with_norm_(self._parameters, self._gradient_clip, total_norm)

    def gradient_norm(self) -> float:
        return self._norm
