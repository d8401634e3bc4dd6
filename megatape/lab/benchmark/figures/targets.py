"""Targets for TAPE's costs over RoPE's, and comparisons of measured or estimated values with them."""

from dataclasses import dataclass
from typing import NamedTuple

from megatape.lab.benchmark.figures.cells import ratio_cell

# Shape -> largest ratio of TAPE's training step to the fastest RoPE.
STEP_TARGETS = {"155m": 1.10, "1b": 1.08, "7b": 1.07}
# Largest ratio for attention layers, forward: the paper's fused layer has it.
LAYER_TARGET = 1.23
# Largest ratio for bytes kept for the backward pass.
SAVED_TARGET = 1.08


class UtilizationTarget(NamedTuple):
    """Smallest model FLOPs utilization at a shape."""

    shape: str
    minimum: float


MFU_TARGET = UtilizationTarget("1b", 0.45)


@dataclass(frozen=True)
class TargetCheck:
    """A ratio of TAPE to RoPE, or a utilization, beside its target.

    Attributes:
        quantity: Name of the compared quantity.
        value: Measured or estimated value.
        limit: Largest ratio, or smallest utilization.
        is_utilization: Whether the value is a utilization.
    """

    quantity: str
    value: float
    limit: float
    is_utilization: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the value meets the target."""
        if self.is_utilization:
            return self.value >= self.limit
        return self.value <= self.limit

    @property
    def value_cell(self) -> str:
        """Value, as a table cell."""
        if self.is_utilization:
            return f"{self.value:.0%}"
        return ratio_cell(self.value, 3)

    @property
    def target_cell(self) -> str:
        """Target, as a table cell."""
        if self.is_utilization:
            return f"at least {self.limit:.0%}"
        return f"at most {self.limit}"

    @property
    def met_cell(self) -> str:
        """Whether the value meets the target, as a table cell."""
        if self.is_met:
            return "yes"
        return "no"


def step_check(shape: str, ratio: float, limit: float | None = None) -> TargetCheck:
    """Return the check of a training step's ratio against `limit`, by default the one in STEP_TARGETS."""
    if limit is None:
        limit = STEP_TARGETS[shape]
    return _ratio_check(f"training step at {shape}", ratio, limit)


def saved_check(shape: str, ratio: float) -> TargetCheck:
    """Return the check of the ratio of bytes kept for the backward pass against its target."""
    return _ratio_check(f"saved activations at {shape}", ratio, SAVED_TARGET)


def layer_check(shape: str, ratio: float) -> TargetCheck:
    """Return the check of an attention layer's ratio, forward, against its target."""
    return _ratio_check(f"attention layer forward at {shape}", ratio, LAYER_TARGET)


def utilization_check(mfu: float) -> TargetCheck:
    """Return the check of TAPE's utilization at MFU_TARGET's shape against its target."""
    return TargetCheck(f"MFU of TAPE at {MFU_TARGET.shape}", mfu, MFU_TARGET.minimum, is_utilization=True)


def _ratio_check(quantity: str, ratio: float, limit: float) -> TargetCheck:
    return TargetCheck(f"{quantity}, TAPE over RoPE", ratio, limit)
