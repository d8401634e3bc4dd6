"""Model FLOPs of a training step, and their share of a device's peak (MFU)."""

from megatape.accounting.flops import forward_flops
from megatape.config import ModelConfig


def step_flops(model: ModelConfig, batch: int, length: int) -> int:
    """Return the model FLOPs of a training step. All N x N scores count, and the backward pass as two forward passes.

    Args:
        model: Section model of the configuration.
        batch: Number of sequences B.
        length: Tokens of a sequence N.
    """
    return 3 * forward_flops(model, length) * batch


def utilization(flops: int, seconds: float, peak: float) -> float:
    """Return the model FLOPs utilization.

    Args:
        flops: Model FLOPs of a step.
        seconds: Seconds of the step.
        peak: Peak FLOPs per second of the device.
    """
    return flops / seconds / peak
