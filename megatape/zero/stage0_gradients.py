"""Norm and clipping of gradients at ZeRO stage 0, where DeepSpeed clips in float32 without reporting the norm."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from megatape.distributed.mesh import Mesh


class Stage0Gradients:
    """Gradients at stage 0, where each replica holds all of them.

    Args:
        parameters: Parameters of the module.
        mesh: Mesh of the ranks.
        device: Device of the gradients.
        max_norm: Maximum norm of the gradient, 0 for no clipping.
    """

    def __init__(self, parameters: Collection[Any], mesh: Mesh, device: torch.device, max_norm: float) -> None:
        self._parameters = parameters
        self._mesh = mesh
        self._device = device
        self._max_norm = max_norm

    def local_square(self) -> Tensor:
        """Return this rank's part of the squared norm: the sum of the parts of all ranks is the square of the norm."""
        shared = torch.zeros((), device=self._device)
        divided = torch.zeros((), device=self._device)
        for parameter in self._parameters:
            if parameter.grad is None:
                continue
            square = parameter.grad.float().square().sum()
            if hasattr(parameter, "partition_dim"):
                divided += square
            else:
                shared += square
        of_tensor_ranks = divided.double() + shared.double() / self._mesh["tensor"].size
        return of_tensor_ranks / self._mesh["replicate"].size

    def clip(self, norm: float) -> None:
        """Clip the gradients.

        Args:
            norm: Norm of the gradients of all ranks.
        """
        if self._max_norm:
            total_norm = torch.tensor(norm, device=self._device)
            nn.utils.clip_grads_with_norm_(self._parameters, self._max_norm, total_norm)
