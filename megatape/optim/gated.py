"""A gate around an optimizer, which decides whether an update changes the weights."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


class GatedOptimizer(Optimizer):
    """An optimizer whose `step` changes weights only if the step is to be taken.

    DeepSpeed calls its client's optimizer once for each group of parameters, after reducing and clipping the gradient. It skips
    the call for a norm that is not finite in some combinations of stage and precision only, and never for a reason of ours.

    Parameter groups and state are the inner optimizer's, so the constructor of the base class, which would make others, is not
    called.

    Args:
        inner: Optimizer that updates weights.
        should_step: Returns whether to take the step. Called before each update.
        apply_step: Takes the step of the inner optimizer.
    """

    def __init__(self, inner: Optimizer, should_step: Callable[[], bool], apply_step: Callable[[], None]) -> None:
        self.inner = inner
        self._should_step = should_step
        self._apply_step = apply_step

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update weights if the step is to be taken."""
        if self._should_step():
            self._apply_step()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the inner optimizer. DeepSpeed replaces them while it updates one of several."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
