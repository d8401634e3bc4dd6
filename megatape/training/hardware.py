"""The device that a rank runs on, its peak rates and memory, and how fast a run trains there."""

import platform
from pathlib import Path
from typing import NamedTuple

import torch

from megatape.accounting.counts import forward_flops
from megatape.accounting.gpus import named
from megatape.config import Config


def peak_flops(precision: str) -> float | None:
    """Peak FLOP/s of this rank's GPU in bfloat16, or None where it is not known (CPUs, other GPUs, float32)."""
    if precision != "bfloat16" or not torch.cuda.is_available():
        return None
    gpu = named(torch.cuda.get_device_name())
    return gpu.bfloat16_flops if gpu else None


def device_name() -> str:
    """Name of this rank's GPU as its driver reports it, or of the processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    models = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return next(models, "").partition(":")[2].strip() or platform.machine()


def peak_memory() -> int:
    """Most bytes used so far: allocated on the GPU, or resident in this process on a CPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    # Not ru_maxrss: it begins with what the process had before exec, which is its parent's memory.
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


class Rates(NamedTuple):
    """Of all ranks together: tokens per second; and model FLOPs utilization, None where the device's peak is not known."""

    tokens: float
    utilization: float | None


class Speed:
    """Speed of a run's steps.

    Attributes:
        sample_flops: FLOPs of the forward and backward pass over one sample.
    """

    def __init__(self, config: Config, world_size: int) -> None:
        self._length = config.data.sequence_length
        self._batches = config.batches
        self._steps = config.training.steps
        # Backward costs twice the forward pass; recomputation under activation checkpointing is not useful work.
        self.sample_flops = 3 * forward_flops(config.model, self._length, config.training.num_shifted_groups)
        peak = peak_flops(config.training.precision)
        self._peak = peak and peak * world_size
        # since this process started
        self._samples = 0
        self._seconds = 0.0

    def add_step(self, step: int, seconds: float) -> None:
        """A step, counted from 1, took so long."""
        self._samples += self._batches.of_step(step)
        self._seconds += seconds

    def of_step(self, step: int, seconds: float) -> Rates:
        """Rates of a step that took `seconds`."""
        return self._rates(self._batches.of_step(step), seconds)

    def mean(self) -> Rates:
        """Rates since this process started."""
        return self._rates(self._samples, self._seconds)

    def seconds_left(self, step: int) -> float:
        """Seconds that the steps after `step` take at the mean speed."""
        return self._seconds / self._samples * (self._batches.consumed(self._steps) - self._batches.consumed(step))

    def _rates(self, samples: int, seconds: float) -> Rates:
        speed = samples / seconds
        return Rates(speed * self._length, speed * self.sample_flops / self._peak if self._peak else None)
