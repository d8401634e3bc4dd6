"""Watches for gradients with a NaN or infinity."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class NonfiniteWatch:
    """Watches gradients of weights replicated on all tensor-parallel ranks.

    Hooks read each gradient before it is summed over these ranks. The sum spreads a NaN or infinity, so only before it can the
    rank at fault be named.

    Args:
        parameters: Weights to watch.
        device: Device of the gradients.

    Attributes:
        found: Whether a gradient since the last `reset` was not finite, bool [] on the device.
    """

    def __init__(self, parameters: Iterable[Any], device: torch.device) -> None:
        self.found = torch.zeros((), dtype=torch.bool, device=device)
        for parameter in parameters:
            parameter.register_hook(self._look)

    def reset(self) -> None:
        """Forget the gradients of the last step."""
        self.found.zero_()

    def _look(self, gradient: Tensor) -> None:
        self.found.logical_or_(~gradient.isfinite().all())
