"""Optimizer that asks a gate before it changes weights."""

from typing import Any

from torch.optim import Optimizer

from megatape.zero.update_gate import UpdateGate


class GatedOptimizer(Optimizer):
    """Optimizer given to DeepSpeed, whose `step` passes through a gate.

    DeepSpeed calls its client's optimizer once for each parameter group, after reducing and clipping the gradient. It skips
    the call for a norm that is not finite in some combinations of stage and precision only, and never for reasons of ours.

    Parameter groups and state are the inner optimizer's, so the constructor of the base class, which would make others, is not
    called.

    Args:
        inner: Optimizer that updates weights.
    """

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self._gate: UpdateGate | None = None

    def connect(self, gate: UpdateGate) -> None:
        """Set the gate. It needs the state that DeepSpeed makes from this optimizer, so it is made after this object."""
        self._gate = gate

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update weights, if the gate lets the update pass."""
        assert self._gate is not None, "a step before `connect`"
        self._gate.step()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the inner optimizer. DeepSpeed replaces them while it updates one of several."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
