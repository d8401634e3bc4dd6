"""A training step's model FLOPs, and the model FLOPs utilization (MFU)."""

from megatape.accounting.whole_model.flops import forward_flops
from megatape.config import ModelConfig


def step_flops(model: ModelConfig, batch: int, length: int) -> int:
    """Return a training step's model FLOPs, counting all N x N scores and a backward pass as two forward passes."""
    return 3 * forward_flops(model, length) * batch


def utilization(flops: int, seconds: float, peak: float) -> float:
    """Return the share of a device's peak FLOPs per second that a step achieves."""
    return flops / seconds / peak
