"""Targets of the benchmarks: costs of TAPE over those of RoPE, and the rows that compare values with them."""

from typing import NamedTuple

from megatape.lab.benchmark.cells import ratio_cell

# Largest ratio of TAPE's whole training step to the fastest RoPE, by shape.
STEP_TARGETS = {"155m": 1.10, "1b": 1.08, "7b": 1.07}
# Largest ratio of attention layers, forward: that of the paper's fused layer.
LAYER_TARGET = 1.23
# Largest ratio of the bytes that a training step keeps for its backward pass.
SAVED_TARGET = 1.08
# Shape, and the smallest model FLOPs utilization there.
MFU_TARGET = ("1b", 0.45)


class TargetRow(NamedTuple):
    """Row of a table of targets.

    Attributes:
        label: Name of the quantity.
        value: Value.
        target: Target.
        met: Whether the value meets the target, "yes" or "no".
    """

    label: str
    value: str
    target: str
    met: str


def step_row(shape: str, ratio: float, limit: float) -> TargetRow:
    """Return the row of a training step.

    Args:
        shape: Name of the shape.
        ratio: Seconds of TAPE over those of RoPE.
        limit: Largest ratio.
    """
    return _ratio_row(f"training step at {shape}", ratio, limit)


def saved_row(shape: str, ratio: float) -> TargetRow:
    """Return the row of the bytes that a training step keeps for its backward pass."""
    return _ratio_row(f"saved activations at {shape}", ratio, SAVED_TARGET)


def layer_row(shape: str, ratio: float) -> TargetRow:
    """Return the row of the forward pass of an attention layer."""
    return _ratio_row(f"attention layer forward at {shape}", ratio, LAYER_TARGET)


def utilization_row(share: float) -> TargetRow:
    """Return the row of TAPE's model FLOPs utilization at the shape of MFU_TARGET."""
    shape, limit = MFU_TARGET
    return TargetRow(f"MFU of TAPE at {shape}", f"{share:.0%}", f"at least {limit:.0%}", _yes_no(share >= limit))


def _ratio_row(name: str, ratio: float, limit: float) -> TargetRow:
    return TargetRow(f"{name}, TAPE over RoPE", ratio_cell(ratio, 3), f"at most {limit}", _yes_no(ratio <= limit))


def _yes_no(met: bool) -> str:
    return "yes" if met else "no"
