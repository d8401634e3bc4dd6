"""A gate around an optimizer, which decides whether an update changes the weights."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


class GatedOptimizer(Optimizer):
    """Passes `step` on to an optimizer if the step is to be taken: only then weights change.

    DeepSpeed calls its client's optimizer once for each group of parameters, when the gradient is
    reduced and clipped. It skips the call for a norm that is not finite in some combinations of stage
    and precision only, and never for a reason of ours.

    Parameter groups and state are those of the inner optimizer, so the constructor of the base class,
    which would make others, is not called.

    Args:
        inner: the optimizer that updates weights.
        admits: asked before each update, whether the step is to be taken.
        finish: called after each update.
    """

    def __init__(self, inner: Optimizer, admits: Callable[[], bool], finish: Callable[[], None]) -> None:
        self.inner = inner
        self.admits = admits
        self.finish = finish

    def step(self, *arguments: Any, **options: Any) -> None:  # type: ignore[override]
        """Update weights if the step is to be taken."""
        if self.admits():
            self.inner.step(*arguments, **options)
            self.finish()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the inner optimizer; DeepSpeed replaces them while it updates one of several."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
