"""Input of several linear layers in the backward pass: rebuilt once for all of them, and freed after the last one."""

from collections.abc import Callable, Iterable

import torch.nn.functional as F
from torch import Tensor


class SharedInput:
    """Counts the layers that multiply one input, and rebuilds it for them in the backward pass.

    Attributes:
        function: Function that rebuilds the input from saved tensors.
        num_consumers: Number of layers whose backward pass needs the input.
        num_pending: Number of these layers still waiting for their backward pass.
        wait: Function returning the rebuilt input, or None before rebuilding and after the last layer.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self.num_consumers = 0
        self.num_pending = 0
        self.wait: Callable[[], Tensor] | None = None

    def add_consumer(self) -> None:
        """Register a layer whose backward pass needs the input."""
        self.num_consumers += 1

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return F.linear of the input x in the forward pass. Subclasses may overlap it with the arrival of x."""
        return F.linear(x, weight, bias)

    def begin(self, args: Iterable[Tensor]) -> None:
        """Begin to rebuild the input, unless another layer has begun."""
        if self.wait is None:
            self.num_pending = self.num_consumers
            self.wait = self.rebuild(*args)

    def rebuild(self, *args: Tensor) -> Callable[[], Tensor]:
        """Begin to rebuild the input, and return a function that waits for it."""
        x = self.function(*args)
        return lambda: x

    def finish(self) -> Tensor:
        """Return the input to one of the layers."""
        assert self.wait is not None
        x = self.wait()
        self.num_pending -= 1
        if not self.num_pending:
            self.wait = None
        return x
