"""A user's own optimizer for whole matrices, and a schedule with a parameter, each with its options."""

from typing import Any

from pydantic import Field
from torch import Tensor

from megatape import registry
from megatape.config import OptimizerConfig, ScheduleConfig
from megatape.config.section import Compared
from megatape.optim.matrices import MatrixOptimizer
from megatape.optim.optimizer import Group


class SpectralOptions(OptimizerConfig):
    """Steps roughly along a momentum's singular vectors.

    Attributes:
        momentum: Decay of the momentum.
        others: Learning rate for other weights, relative to that for matrices.
    """

    momentum: Compared[float] = Field(0.9, ge=0, lt=1)
    others: Compared[float] = Field(0.1, gt=0)


class Spectral(MatrixOptimizer):
    """The first step of Newton and Schulz's iteration towards U V^T of a momentum, over a mean norm of the rows; the momentum
    of other gradients. (U V^T itself would amplify rounding.)"""

    def __init__(self, groups: list[Group], options: SpectralOptions) -> None:
        super().__init__(groups, {})
        self.options = options

    def update_matrix(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        state["count"] += 1
        state["momentum"].lerp_(gradient, 1 - self.options.momentum)
        state["norms"][:, 0, :].lerp_(gradient.norm(dim=1)[:, None], 0.5)
        scaled = state["momentum"] / (state["momentum"].norm() + 1e-3)
        return (1.5 * scaled - 0.5 * scaled @ scaled.T @ scaled) / (1 + state["norms"][:, 0, :] / state["count"])

    def update_others(self, group: dict[str, Any]) -> None:
        for flat in group["params"]:
            if flat.grad is not None:
                average = self.state[flat]["average"].lerp_(flat.grad, 1 - self.options.momentum)
                flat.sub_(average, alpha=group["lr"] * self.options.others)


def matrix_state(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Tensors of one, two and three dimensions."""
    return {"momentum": shape, "norms": (shape[0], 1, 1), "count": (1,)}


SPECTRAL = registry.OptimizerEntry(
    "tests.helpers.models.own_optimizer:Spectral",
    "spectral steps",
    "tests.helpers.models.own_optimizer:SpectralOptions",
    state=("average",),
    matrix_state="tests.helpers.models.own_optimizer:matrix_state",
)


class StepsOptions(ScheduleConfig):
    """Steps down.

    Attributes:
        stairs: Number of steps down.
    """

    stairs: Compared[int] = Field(4, ge=1)


def stairs(progress: float, options: StepsOptions) -> float:
    """Down by equal steps."""
    return 1 - int(progress * options.stairs) / options.stairs


STAIRS = registry.ScheduleEntry(
    "tests.helpers.models.own_optimizer:stairs", "steps down", "tests.helpers.models.own_optimizer:StepsOptions"
)
