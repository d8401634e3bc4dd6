"""Roofline model: each operation takes as long as its arithmetic or its bytes, at the rates that busy GPUs reach."""

import math
from typing import NamedTuple

from megatape.accounting.gpus import Gpu
from megatape.tools.planner.kernels.operations import KernelKind, Kind, Work
from megatape.tools.planner.step_time.cases import ByCase, Case
from megatape.tools.planner.step_time.rates import EAGER_SLOWDOWN, FUSED_EFFICIENCY, MEMORY_EFFICIENCY, rates_of


class DeviceTime(NamedTuple):
    """Seconds of one GPU's work.

    Attributes:
        compute_bound: Operations limited by arithmetic.
        memory_bound: Operations limited by memory bandwidth.
    """

    compute_bound: float
    memory_bound: float


def device_times(work: Work, gpu: Gpu) -> ByCase[DeviceTime]:
    """Return the time of running operations one after the other."""
    return ByCase(_seconds(work, gpu, Case.BAD), _seconds(work, gpu, Case.GOOD))


def middle(times: ByCase[DeviceTime]) -> DeviceTime:
    """Return the geometric mean of the bad and the good case, for each part."""
    compute_bound = math.sqrt(times.bad.compute_bound * times.good.compute_bound)
    memory_bound = math.sqrt(times.bad.memory_bound * times.good.memory_bound)
    return DeviceTime(compute_bound, memory_bound)


def _seconds(work: Work, gpu: Gpu, case: Case) -> DeviceTime:
    bandwidth = gpu.memory_bandwidth * MEMORY_EFFICIENCY.of(case)
    compute_bound = 0.0
    memory_bound = 0.0
    for operation, count in work.items():
        rate = gpu.bfloat16_flops * _efficiency(operation.kind, gpu).of(case)
        arithmetic = operation.flops / rate
        moving = operation.bytes / bandwidth
        if operation.kind is KernelKind.EAGER:
            moving *= EAGER_SLOWDOWN
        if arithmetic > moving:
            compute_bound += count * arithmetic
        else:
            memory_bound += count * moving
    return DeviceTime(compute_bound, memory_bound)


def _efficiency(kind: Kind, gpu: Gpu) -> ByCase[float]:
    """Return the share of the peak that a kind of operation reaches."""
    if kind is KernelKind.PRODUCT:
        return rates_of(gpu).products
    if kind is KernelKind.FUSED_PRODUCTS:
        return FUSED_EFFICIENCY
    if isinstance(kind, KernelKind):
        # Other kernels have no matrix products.
        return ByCase(1.0, 1.0)
    return rates_of(gpu).attention(kind)
