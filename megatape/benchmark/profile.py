"""Where the time of a training step goes: its kernels, how long the GPU waits for the host, and when the host waits for it."""

from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as record

from megatape.benchmark.bare import BareStep
from megatape.benchmark.child import Bench
from megatape.benchmark.journal import Result
from megatape.benchmark.shapes import Shape, shapes
from megatape.study.efficiency import BASELINE, compute_dtype
from megatape.study.timing import timed

WARM_UP, STEPS = 3, 3
KERNELS = 25  # those that take longest
NAME_LENGTH = 90
# Calls of CUDA after which the host waits for the device.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def profile(bench: Bench) -> None:
    """Profile steps of RoPE and TAPE with the backend of `auto`, eager and compiled."""
    device, shape = torch.device(bench.device), shapes(bench.tiny)["155m"]
    for compiled in (False,) if bench.tiny else (False, True):
        for encoding in ("tape", BASELINE):
            key = f"155m/{encoding}/{'compiled' if compiled else 'eager'}"
            bench.measure(key, partial(_profiled, shape, encoding, compiled, device))


def _profiled(shape: Shape, encoding: str, compiled: bool, device: torch.device) -> Result:
    step = BareStep(shape, encoding, device, compute_dtype(device), compiled=compiled)
    for _ in range(WARM_UP):
        step()

    def steps() -> None:
        for _ in range(STEPS):
            step()

    seconds = timed(steps, device) / STEPS
    on_gpu = device.type == "cuda"
    with record(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu) as recorder:
        timed(steps, device)
    events = recorder.key_averages()
    # On a CPU operators take the place of kernels. Ranges that code has named are on the GPU's timeline, too.
    kernels = [event for event in events if not on_gpu or _is_kernel(event)]
    kernels.sort(key=partial(_own, on_gpu), reverse=True)
    busy = sum(_own(on_gpu, event) for event in kernels)
    return {
        "seconds": seconds,
        "busy seconds": busy,
        "kernels": sum(event.count for event in kernels) / STEPS,
        "waits": sum(event.count for event in events if event.key.startswith(WAITS)) / STEPS,
        "top": [
            {"name": event.key[:NAME_LENGTH], "calls": event.count / STEPS, "seconds": _own(on_gpu, event)}
            for event in kernels[:KERNELS]
        ],
    }


def _is_kernel(event: Any) -> bool:
    return event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation


def _own(on_gpu: bool, event: Any) -> float:
    """Seconds of a step, without what ran inside."""
    return float(event.self_device_time_total if on_gpu else event.self_cpu_time_total) / STEPS / 1e6
