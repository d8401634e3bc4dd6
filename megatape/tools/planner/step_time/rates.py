"""Rates that busy GPUs reach, as shares of their data sheets (accounting/gpus.py), and the assumptions behind an estimate.

docs/results/planned.md compares the resulting speeds with published and measured ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from megatape.accounting.gpus import Gpu
from megatape.tools.planner.kernels.operations import Attention, AttentionBackend, Direction
from megatape.tools.planner.step_time.cases import ByCase

FUSED_EFFICIENCY = ByCase(0.30, 0.55)
MEMORY_EFFICIENCY = ByCase(0.6, 0.85)
# Efficiency of links between GPUs, and between a GPU and its host.
LINK_EFFICIENCY = ByCase(0.5, 0.8)

# Bandwidth of compiled kernels over that of PyTorch's single kernels, measured on an H200.
EAGER_SLOWDOWN = 1.2

# TFLOP/s of causal attention without its masked half, by backend, pass and head size: at 1k tokens in the bad case, at 4k in
# the good one. PyTorch's rates are those of cuDNN on an H100 SXM, from figures 5 and 6 of FlashAttention-3's paper (arXiv
# 2407.08608). Ours and FlashAttention-4's are those of TAPE on an H200 (docs/results/speed.md), with head size 128 from 2k
# tokens on. Ours with head size 64 were measured at 1k, and are a quarter more at 4k, as that paper reports for Triton's
# forward pass.
HOPPER_TFLOPS = {
    (AttentionBackend.SDPA, Direction.FORWARD): {64: ByCase(288, 363), 128: ByCase(410, 518)},
    (AttentionBackend.SDPA, Direction.BACKWARD): {64: ByCase(348, 417), 128: ByCase(408, 499)},
    (AttentionBackend.FA4, Direction.FORWARD): {64: ByCase(337, 501), 128: ByCase(504, 596)},
    (AttentionBackend.FA4, Direction.BACKWARD): {64: ByCase(323, 479), 128: ByCase(396, 469)},
    (AttentionBackend.TRITON, Direction.FORWARD): {64: ByCase(244, 305), 128: ByCase(347, 426)},
    (AttentionBackend.TRITON, Direction.BACKWARD): {64: ByCase(279, 349), 128: ByCase(288, 356)},
}
# Peak rate of these GPUs in TFLOP/s.
HOPPER_PEAK = 989

FP8_ASSUMPTION = "FP8 products, with the scaling of their matrices, as fast as bfloat16's; --measured has their real time"


@dataclass(frozen=True)
class GpuRates:
    """Rates of a GPU while training.

    Attributes:
        products: Share of the peak that matrix products reach.
        has_attention_rates: Whether attention runs at HOPPER_TFLOPS. Otherwise it has the efficiency of fused kernels.
        sustained_slowdown: Step time of GPUs training together, relative to one GPU with the same work. Fitted to published
            runs: after minutes of training, GPUs lower their clocks to stay within their power limit, and exchanges occupy
            some of their multiprocessors.
    """

    products: ByCase[float]
    has_attention_rates: bool
    sustained_slowdown: ByCase[float]

    def attention(self, kernel: Attention) -> ByCase[float]:
        """Return the share of the peak that a kernel of attention reaches."""
        if not self.has_attention_rates:
            return FUSED_EFFICIENCY
        head_size = 64 if kernel.head_dim <= 64 else 128
        rates = HOPPER_TFLOPS[kernel.backend, kernel.direction][head_size]
        return ByCase(rates.bad / HOPPER_PEAK, rates.good / HOPPER_PEAK)


OTHER_GPUS = GpuRates(ByCase(0.50, 0.75), has_attention_rates=False, sustained_slowdown=ByCase(1.25, 1.08))
HOPPER = replace(OTHER_GPUS, has_attention_rates=True)
# A100s come closer to their peak, which is a third of an H100's.
A100 = GpuRates(ByCase(0.60, 0.85), has_attention_rates=False, sustained_slowdown=ByCase(1.0, 1.0))

# Name of a GPU, as in accounting/gpus.py -> its rates. GPUs that are not listed have the rates of OTHER_GPUS.
RATES: Mapping[str, GpuRates] = {"A100": A100, "H100": HOPPER, "H200": HOPPER, "GH200": HOPPER}


def rates_of(gpu: Gpu) -> GpuRates:
    """Return the rates of a GPU."""
    return RATES.get(gpu.name, OTHER_GPUS)


# Assumptions about the time of a step.
ASSUMPTIONS = (
    f"matrix products at {OTHER_GPUS.products.bad:.0%} to {OTHER_GPUS.products.good:.0%} of the peak",
    f"matrix products of A100s at {A100.products.bad:.0%} to {A100.products.good:.0%} of it",
    "attention without its masked half; on Hopper at an H100's published rates of cuDNN (PyTorch), by head size",
    "attention with a head size above 128 on Hopper at the rates of 128",
    "our attention in Triton, and FlashAttention-4's, on Hopper at the rates measured on an H200",
    f"our other kernels, and attention elsewhere, at {FUSED_EFFICIENCY.bad:.0%} to {FUSED_EFFICIENCY.good:.0%} of the peak",
    f"device memory at {MEMORY_EFFICIENCY.bad:.0%} to {MEMORY_EFFICIENCY.good:.0%} of its peak",
    f"operations of PyTorch that are not compiled move bytes {EAGER_SLOWDOWN} times as slowly",
    f"links at {LINK_EFFICIENCY.bad:.0%} to {LINK_EFFICIENCY.good:.0%} of their peak",
    "each operation takes the longer of its arithmetic and its bytes, reads its inputs once and writes its outputs once",
    "torch.compile fuses all that lies between two matrix products",
    "exchanges of ZeRO, and tensor-parallel ones that are begun ahead, are overlapped with computation in the good case",
    "no waiting for data, checkpoints or stragglers; FLOPs and MFU count all N x N scores",
)
