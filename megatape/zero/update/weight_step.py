"""Optimizer step on this rank's weights."""

from typing import Any

import torch

from megatape.nn.parameters import spec_of
from megatape.optim.matrices import MatrixOptimizer
from megatape.zero.state.kinds import WEIGHT
from megatape.zero.state.zero_state import ZeroState
from megatape.zero.update.whole_matrices import WholeMatrices


class WeightStep:
    """Optimizer step that keeps weights within their declared bounds.

    Args:
        optimizer: Optimizer without the gate around it.
        state: Engine state.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, state: ZeroState) -> None:
        # Any: only the step of a MatrixOptimizer takes an argument.
        self._optimizer: Any = optimizer
        self._state = state
        self._bounds = _declared_bounds(state)
        self._matrices: WholeMatrices | None = None
        if isinstance(optimizer, MatrixOptimizer):
            self._matrices = WholeMatrices(state)

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps. Each parameter group multiplies it by its `scale`."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate * group["scale"]

    def apply(self) -> None:
        """Change the weights. Collective if the optimizer updates whole matrices."""
        if self._matrices is None:
            self._optimizer.step()
        else:
            self._optimizer.step(self._matrices.update)
        for name, (low, high) in self._bounds.items():
            self._state.piece(name, WEIGHT).values.clamp_(low, high)


def _declared_bounds(state: ZeroState) -> dict[str, tuple[float, float]]:
    """Return the lowest and highest value of each weight that declares bounds."""
    bounds = {}
    for name, parameter in state.parameters.items():
        declared = spec_of(parameter).bounds
        if declared:
            bounds[name] = declared
    return bounds
