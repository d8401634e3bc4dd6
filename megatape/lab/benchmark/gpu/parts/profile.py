"""Profile of a training step: kernels, the GPU's busy time, and calls waiting for the GPU."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as record

from megatape.lab.benchmark.figures.measurement import Measurement
from megatape.lab.benchmark.figures.timing import Timer
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.parts.raw_step import RawStep
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.tables import label, measurements, titled
from megatape.lab.benchmark.models.shapes import ModelShape, compute_precision, shapes
from megatape.lab.encodings import BASELINE
from megatape.utils.text.units import format_milliseconds

WARM_UP_STEPS = 3
PROFILED_STEPS = 3
# Kernels to record and to show, slowest first.
MAX_KERNELS = 25
MAX_KERNELS_SHOWN = 12
MAX_NAME_LENGTH = 90
# CUDA calls with these prefixes wait for the device.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


class ProfiledKernel(Measurement):
    """Kernel with its calls and seconds per step."""

    name: str
    calls: float
    seconds: float


class ProfileResult(Measurement):
    """A step's profile.

    Attributes:
        seconds: Seconds without the profiler.
        busy_seconds: Seconds in which the GPU is busy.
        kernels: Number of kernels.
        waits: Calls waiting for the GPU.
        top: Slowest kernels.
    """

    seconds: float
    busy_seconds: float
    kernels: float
    waits: float
    top: list[ProfiledKernel]


def measure(bench: Bench) -> None:
    """Profile TAPE and RoPE with `auto`, eager and compiled."""
    shape = shapes(bench.tiny)["155m"]
    if bench.tiny:
        modes = {"eager": False}
    else:
        modes = {"eager": False, "compiled": True}
    for (mode, compiled), encoding in product(modes.items(), ("tape", BASELINE)):
        bench.measure(("155m", encoding, mode), partial(_profile_step, bench.timer, shape, encoding, compiled))


def _profile_step(timer: Timer, shape: ModelShape, encoding: str, compiled: bool) -> ProfileResult:
    """Time and profile a step. On a CPU, operators replace kernels."""
    device = timer.device
    on_gpu = device.type == "cuda"
    step = RawStep(shape.config(encoding, compute_precision(device), compile=compiled), device)
    for _ in range(WARM_UP_STEPS):
        step()

    seconds = timer.seconds(step, PROFILED_STEPS)
    activities = [ProfilerActivity.CPU]
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
    with record(activities=activities) as recorder:
        timer.seconds(step, PROFILED_STEPS)

    events = recorder.key_averages()
    kernels = [event for event in events if not on_gpu or _is_kernel(event)]
    kernels.sort(key=partial(_own_seconds, on_gpu), reverse=True)
    waits = [event for event in events if event.key.startswith(WAITS)]
    top = []
    for event in kernels[:MAX_KERNELS]:
        kernel = ProfiledKernel(
            name=event.key[:MAX_NAME_LENGTH],
            calls=event.count / PROFILED_STEPS,
            seconds=_own_seconds(on_gpu, event),
        )
        top.append(kernel)
    return ProfileResult(
        seconds=seconds,
        busy_seconds=sum(_own_seconds(on_gpu, event) for event in kernels),
        kernels=sum(event.count for event in kernels) / PROFILED_STEPS,
        waits=sum(event.count for event in waits) / PROFILED_STEPS,
        top=top,
    )


def _is_kernel(event: Any) -> bool:
    """Whether an event is a kernel, not a named range on the GPU timeline."""
    return event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation


def _own_seconds(on_gpu: bool, event: Any) -> float:
    """Return the seconds per step, excluding nested events."""
    if on_gpu:
        microseconds = event.self_device_time_total
    else:
        microseconds = event.self_cpu_time_total
    return float(microseconds) / PROFILED_STEPS / 1e6


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row per step, then each step's slowest kernels."""
    profiles = dict(measurements(results, "profile", label, ProfileResult))
    rows = []
    for name, result in profiles.items():
        busy = result.busy_seconds / result.seconds
        rows.append(
            [
                name,
                format_milliseconds(result.seconds),
                f"{busy:.0%}",
                f"{result.kernels:.0f}",
                f"{result.waits:.0f}",
            ]
        )
    yield from titled("Profile of a step", ["", "ms per step", "GPU busy", "kernels", "waits of the host"], rows)
    for name, result in profiles.items():
        rows = []
        for kernel in result.top[:MAX_KERNELS_SHOWN]:
            rows.append([f"`{kernel.name}`", f"{kernel.calls:.0f}", format_milliseconds(kernel.seconds)])
        yield from titled(f"Kernels of a step, {name}", ["", "calls", "ms"], rows)
