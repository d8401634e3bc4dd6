"""Peak rates and memory of the device that a rank runs on."""

import resource
import sys

import torch

# Dense bfloat16 matrix rate in FLOP/s, from the vendors' data sheets, by a part of the device's name.
PEAK_BFLOAT16 = {
    "H200": 989e12,
    "H100": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "L40S": 362e12,
    "MI300X": 1307e12,
}


def peak_flops(precision: str) -> float | None:
    """Peak FLOP/s of this rank's GPU in bfloat16, or None where it is not known (CPUs, other GPUs, float32)."""
    if precision != "bfloat16" or not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    return next((rate for part, rate in PEAK_BFLOAT16.items() if part in name), None)


def peak_memory() -> int:
    """Most bytes used so far: allocated on the GPU, or resident in this process on a CPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return resident if sys.platform == "darwin" else resident * 1024
