"""This rank's device: its name, peak rate and memory."""

import platform
from pathlib import Path

import torch

from megatape.accounting.gpus import find_gpu


def peak_flops(precision: str) -> float | None:
    """Return the peak FLOP/s of this rank's GPU in bfloat16, or None if unknown (CPUs, other GPUs, float32)."""
    if precision != "bfloat16" or not torch.cuda.is_available():
        return None
    gpu = find_gpu(torch.cuda.get_device_name())
    if gpu is None:
        return None
    return gpu.bfloat16_flops


def device_name() -> str:
    """Return the name of this rank's GPU, as reported by its driver, or of the processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            _, _, name = line.partition(":")
            return name.strip() or platform.machine()
    return platform.machine()


def peak_memory() -> int:
    """Return peak bytes: allocated on the GPU, or on a CPU, resident in this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    # ru_maxrss would start with the parent's memory from before exec, so read VmHWM.
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024
