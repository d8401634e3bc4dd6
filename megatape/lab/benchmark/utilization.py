"""Model FLOPs of a training step, and their share of a device's peak (MFU)."""

from megatape.accounting.flops import forward_flops
from megatape.config import ModelConfig


def step_flops(model: ModelConfig, batch: int, length: int) -> int:
    """Return the model FLOPs of a training step, counting all N x N scores and a backward pass as two forward passes.

    Args:
        model: Model configuration.
        batch: Number of sequences B.
        length: Sequence length N.
    """
    return 3 * forward_flops(model, length) * batch


def utilization(flops: int, seconds: float, peak: float) -> float:
    """Return the model FLOPs utilization of a step on a device with `peak` FLOPs per second."""
    return flops / seconds / peak
