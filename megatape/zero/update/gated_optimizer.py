"""Optimizer that asks a gate before it changes weights."""

from typing import Any

from torch.optim import Optimizer

from megatape.zero.update.gate import UpdateGate


class GatedOptimizer(Optimizer):
    """Optimizer given to DeepSpeed, whose `step` passes through a gate.

    DeepSpeed calls its client's optimizer once for each parameter group, after reducing and clipping the gradient. In
    some combinations of stage and precision it skips the call if the norm is not finite. It never does so for our own reasons.

    Parameter groups and state are the inner optimizer's. Calling the base constructor would make others.

    Args:
        inner: Optimizer that updates weights.
    """

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self._gate: UpdateGate | None = None

    def connect(self, gate: UpdateGate) -> None:
        """Set the gate, which can only be made after DeepSpeed has initialized with this optimizer."""
        self._gate = gate

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update weights, if the gate lets the update pass."""
        assert self._gate is not None, "a step before `connect`"
        self._gate.step()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The inner optimizer's groups. DeepSpeed replaces them while updating one of several."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
