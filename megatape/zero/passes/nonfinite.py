"""Detects gradients with a NaN or infinity."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class NonfiniteDetector:
    """Detects non-finite gradients of weights replicated on all tensor-parallel ranks.

    Hooks read each gradient before it is summed over these ranks. Summing spreads a NaN or infinity to all of them, so the rank
    at fault can only be named before.

    Args:
        parameters: Weights whose gradients are checked.
        device: Device of the gradients.

    Attributes:
        detected: Whether a gradient since the last `reset` was not finite, bool [] on the device.
    """

    def __init__(self, parameters: Iterable[Any], device: torch.device) -> None:
        self.detected = torch.zeros((), dtype=torch.bool, device=device)
        for parameter in parameters:
            parameter.register_hook(self._check)

    def reset(self) -> None:
        """Start a new step."""
        self.detected.zero_()

    def _check(self, gradient: Tensor) -> None:
        self.detected.logical_or_(~gradient.isfinite().all())
