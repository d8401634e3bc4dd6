"""Roofline of a GPU: each operation takes the longer of its arithmetic and its bytes, at the rates that busy GPUs reach."""

import math
from typing import NamedTuple

from megatape.accounting.gpus import Gpu
from megatape.tools.planner.cases import ByCase, Case
from megatape.tools.planner.operations import AttentionBackend, Direction, Kernel, Kind, Work

# Shares of the data sheet's rates that busy GPUs reach. docs/results/planned.md compares the resulting speeds with
# published and measured ones.
MATRIX_EFFICIENCY = ByCase(0.50, 0.75)
A100_MATRIX_EFFICIENCY = ByCase(0.60, 0.85)  # A100s come closer to their peak, which is a third of an H100's.
FUSED_EFFICIENCY = ByCase(0.30, 0.55)
MEMORY_EFFICIENCY = ByCase(0.6, 0.85)
LINK_EFFICIENCY = ByCase(0.5, 0.8)  # links between GPUs, and between a GPU and its host

EAGER_SLOWDOWN = 1.2  # Bandwidth of compiled kernels over that of PyTorch's single kernels, measured on an H200.

# TFLOP/s of causal attention without its masked half, by backend, pass and head size: at 1k tokens in the bad case, at 4k in
# the good one. PyTorch's rates are those of cuDNN on an H100 SXM, from figures 5 and 6 of FlashAttention-3's paper (arXiv
# 2407.08608). Ours are those of TAPE on an H200 (docs/kernels.md): with head size 128 from 2k tokens on; with head size 64
# measured at 1k, and a quarter more at 4k, as that paper reports for Triton's forward pass.
H100_TFLOPS = {
    (AttentionBackend.SDPA, Direction.FORWARD): {64: ByCase(288, 363), 128: ByCase(410, 518)},
    (AttentionBackend.SDPA, Direction.BACKWARD): {64: ByCase(348, 417), 128: ByCase(408, 499)},
    (AttentionBackend.TRITON, Direction.FORWARD): {64: ByCase(244, 305), 128: ByCase(347, 426)},
    (AttentionBackend.TRITON, Direction.BACKWARD): {64: ByCase(279, 349), 128: ByCase(288, 356)},
}
H100_PEAK = 989  # TFLOP/s
HOPPER = ("H100", "H200", "GH200")  # On other GPUs, attention has the efficiency of fused kernels.

# Assumptions about the time of a step.
ASSUMPTIONS = (
    f"matrix products at {MATRIX_EFFICIENCY.bad:.0%} to {MATRIX_EFFICIENCY.good:.0%} of the peak",
    f"matrix products of A100s at {A100_MATRIX_EFFICIENCY.bad:.0%} to {A100_MATRIX_EFFICIENCY.good:.0%} of it",
    "attention without its masked half; on Hopper at an H100's published rates of cuDNN (PyTorch), by head size",
    "our attention in Triton there at the rates that it has on an H200",
    f"our other kernels, and attention elsewhere, at {FUSED_EFFICIENCY.bad:.0%} to {FUSED_EFFICIENCY.good:.0%} of the peak",
    f"device memory at {MEMORY_EFFICIENCY.bad:.0%} to {MEMORY_EFFICIENCY.good:.0%} of its peak",
    f"operations of PyTorch that are not compiled move bytes {EAGER_SLOWDOWN} times as slowly",
    f"links at {LINK_EFFICIENCY.bad:.0%} to {LINK_EFFICIENCY.good:.0%} of theirs",
    "each operation takes the longer of its arithmetic and its bytes, reads its inputs once and writes its outputs once",
    "torch.compile fuses all that lies between two matrix products",
    "exchanges of ZeRO, and tensor-parallel ones that are begun ahead, are overlapped with computation in the good case",
    "no waiting for data, checkpoints or stragglers; FLOPs and MFU count all N x N scores",
)
FP8_ASSUMPTION = "FP8 products, with the scaling of their matrices, as fast as bfloat16's; --measured has their real time"


class DeviceTime(NamedTuple):
    """Time of the work of one GPU in seconds.

    Attributes:
        compute_bound: Time of the operations that arithmetic limits.
        memory_bound: Time of the operations that memory limits.
    """

    compute_bound: float
    memory_bound: float


def device_times(work: Work, gpu: Gpu) -> ByCase[DeviceTime]:
    """Return the time that operations take one after the other."""
    return ByCase(_seconds(work, gpu, Case.BAD), _seconds(work, gpu, Case.GOOD))


def middle(times: ByCase[DeviceTime]) -> DeviceTime:
    """Return the estimate between the bad and the good case: the geometric mean of each part."""
    compute_bound = math.sqrt(times.bad.compute_bound * times.good.compute_bound)
    memory_bound = math.sqrt(times.bad.memory_bound * times.good.memory_bound)
    return DeviceTime(compute_bound, memory_bound)


def _seconds(work: Work, gpu: Gpu, case: Case) -> DeviceTime:
    """Return the time of operations in one case."""
    bandwidth = gpu.memory_bandwidth * MEMORY_EFFICIENCY.of(case)
    compute_bound = 0.0
    memory_bound = 0.0
    for operation, count in work.items():
        rate = gpu.bfloat16_flops * _efficiency(operation.kind, gpu).of(case)
        arithmetic = operation.flops / rate
        moving = operation.bytes / bandwidth
        if operation.kind is Kernel.EAGER:
            moving *= EAGER_SLOWDOWN
        if arithmetic > moving:
            compute_bound += count * arithmetic
        else:
            memory_bound += count * moving
    return DeviceTime(compute_bound, memory_bound)


def _efficiency(kind: Kind, gpu: Gpu) -> ByCase[float]:
    """Return the share of the peak."""
    if kind is Kernel.PRODUCT:
        if gpu.name == "A100":
            return A100_MATRIX_EFFICIENCY
        return MATRIX_EFFICIENCY
    if kind is Kernel.FUSED_PRODUCTS:
        return FUSED_EFFICIENCY
    if isinstance(kind, Kernel):
        return ByCase(1.0, 1.0)  # no matrix products
    if gpu.name not in HOPPER:
        return FUSED_EFFICIENCY
    head_size = 128
    if kind.head_dim <= 64:
        head_size = 64
    rates = H100_TFLOPS[kind.backend, kind.direction][head_size]
    return ByCase(rates.bad / H100_PEAK, rates.good / H100_PEAK)
