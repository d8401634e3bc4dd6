"""Operations of a GPU and the roofline: each takes the longer of its arithmetic and its bytes."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from megatape.accounting.gpus import Gpu
from megatape.utils.torch_internals import ATTENTION_OPERATORS, is_view, tree_leaves

# Shares of the data sheet's rates that busy GPUs reach, in the bad and in the good case. docs/planning.md compares the
# resulting speeds with published and measured ones.
MATRIX_EFFICIENCY = (0.50, 0.75)
A100_MATRIX_EFFICIENCY = (0.60, 0.85)  # A100s come closer to their peak, which is a third of an H100's.
FUSED_EFFICIENCY = (0.30, 0.55)
MEMORY_EFFICIENCY = (0.6, 0.85)
EAGER_SLOWDOWN = 1.2  # Bandwidth of compiled kernels over that of PyTorch's single kernels, measured on an H200.
LINK_EFFICIENCY = (0.5, 0.8)  # between GPUs, and between a GPU and its host
FLOAT32_SLOWDOWN = 16  # of plain float32 products against bfloat16 ones, on A100 and H100

# TFLOP/s of causal attention without its masked half, by backend, pass and size of heads, at 1k and at 4k tokens. PyTorch's is
# cuDNN's, on an H100 SXM as in figures 5 and 6 of FlashAttention-3's paper (arXiv 2407.08608). Ours is TAPE's on an H200
# (docs/kernels.md), at R 128 from 2k tokens on; at R 64 it was measured at 1k, and has a quarter more at 4k, as that paper says
# of Triton's forward pass.
H100_TFLOPS = {
    ("sdpa", "forward"): {64: (288, 363), 128: (410, 518)},
    ("sdpa", "backward"): {64: (348, 417), 128: (408, 499)},
    ("triton", "forward"): {64: (244, 305), 128: (347, 426)},
    ("triton", "backward"): {64: (279, 349), 128: (288, 356)},
}
H100_PEAK = 989
HOPPER = ("H100", "H200", "GH200")  # others have the efficiency of fused kernels

# Of the time of a step (speed.py).
ASSUMPTIONS = (
    f"matrix products at {MATRIX_EFFICIENCY[0]:.0%} to {MATRIX_EFFICIENCY[1]:.0%} of the peak",
    f"matrix products of A100s at {A100_MATRIX_EFFICIENCY[0]:.0%} to {A100_MATRIX_EFFICIENCY[1]:.0%} of it",
    "attention without its masked half; on Hopper at an H100's published rates of cuDNN (PyTorch), by head size",
    "our attention in Triton there at the rates that it has on an H200",
    f"our other kernels, and attention elsewhere, at {FUSED_EFFICIENCY[0]:.0%} to {FUSED_EFFICIENCY[1]:.0%} of the peak",
    f"device memory at {MEMORY_EFFICIENCY[0]:.0%} to {MEMORY_EFFICIENCY[1]:.0%} of its peak",
    f"operations of PyTorch that are not compiled move bytes {EAGER_SLOWDOWN} times as slowly",
    f"links at {LINK_EFFICIENCY[0]:.0%} to {LINK_EFFICIENCY[1]:.0%} of theirs",
    "each operation takes the longer of its arithmetic and its bytes, reads its inputs once and writes its outputs once",
    "torch.compile fuses all that lies between two matrix products",
    "exchanges of ZeRO, and tensor-parallel ones that are begun ahead, are overlapped with computation in the good case",
    "no waiting for data, checkpoints or stragglers; FLOPs and MFU count all N x N scores",
)
# Our attention's kernels, which take queries first, by name.
BACKWARD_KERNELS = ("queries_kernel", "keys_kernel", "distances_kernel")
FP8_ASSUMPTION = "FP8 products, with the scaling of their matrices, as fast as bfloat16's; --measured has their real time"


class Attention(NamedTuple):
    """A kernel of attention. backend: sdpa or triton; direction: forward or backward."""

    backend: str
    direction: str
    head_dim: int


# Matrix products alone; MegaTAPE's kernels that multiply between other work; PyTorch's single kernels that do not multiply; and
# fused kernels that do not multiply.
Kind = Attention | Literal["product", "fused", "eager", "other"]


class Operation(NamedTuple):
    """A kernel. flops: of matrix products, in bfloat16 or in the time of so many; bytes: read and written in device memory."""

    kind: Kind
    flops: float
    bytes: float


Work = Counter[Operation]  # how often each operation runs


class DeviceTime(NamedTuple):
    """Seconds of the work of one GPU: of the operations that arithmetic limits, and of those that memory limits."""

    compute_bound: float
    memory_bound: float


def device_times(work: Work, gpu: Gpu) -> tuple[DeviceTime, DeviceTime]:
    """Seconds that the operations take one after the other, with the (bad, good) efficiencies."""
    return _seconds(work, gpu, case=0), _seconds(work, gpu, case=1)


def _seconds(work: Work, gpu: Gpu, case: int) -> DeviceTime:
    bandwidth = gpu.memory_bandwidth * MEMORY_EFFICIENCY[case]
    compute_bound = memory_bound = 0.0
    for operation, count in work.items():
        rate = gpu.bfloat16_flops * _efficiency(operation.kind, gpu)[case]
        arithmetic = operation.flops / rate
        moving = operation.bytes / bandwidth
        if operation.kind == "eager":
            moving *= EAGER_SLOWDOWN
        if arithmetic > moving:
            compute_bound += count * arithmetic
        else:
            memory_bound += count * moving
    return DeviceTime(compute_bound, memory_bound)


def _efficiency(kind: Kind, gpu: Gpu) -> tuple[float, float]:
    """Shares of the peak, (bad, good)."""
    if kind == "product" and gpu.name == "A100":
        return A100_MATRIX_EFFICIENCY
    if isinstance(kind, str):
        return {"product": MATRIX_EFFICIENCY, "fused": FUSED_EFFICIENCY, "eager": (1.0, 1.0), "other": (1.0, 1.0)}[kind]
    if gpu.name not in HOPPER:
        return FUSED_EFFICIENCY
    bad, good = H100_TFLOPS[kind.backend, kind.direction][64 if kind.head_dim <= 64 else 128]
    return bad / H100_PEAK, good / H100_PEAK


def middle(times: tuple[DeviceTime, DeviceTime]) -> DeviceTime:
    """The estimate between the bad and the good case: the geometric mean of each part."""
    return DeviceTime(*(math.sqrt(bad * good) for bad, good in zip(*times, strict=True)))


def operation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Operation | None:
    """One kernel, from a call of an ATen operator or of our launch (nn/kernels/launch.py); None if it moves nothing."""
    name = func.overloadpacket.__name__
    causal = func.overloadpacket in ATTENTION_OPERATORS
    ours = func.namespace != "aten"
    if is_view(func) or "empty" in name:
        return None
    inputs = tensors_of([args, {key: value for key, value in kwargs.items() if key != "out"}])
    outputs = tensors_of(out)
    if name.startswith("new_") or name.endswith("_like"):
        inputs = []
    elif name in ("copy_", "fill_", "zero_"):
        inputs = inputs[1:]
    elif name in ("embedding", "gather", "index", "index_select"):  # picks as much as it returns
        inputs = [*inputs[1:], *outputs]
    elif name in ("scatter_", "scatter_add_", "index_put_"):  # changes a few numbers in place
        inputs, outputs = inputs[1:], inputs[1:]
    elif name == "_fused_rms_norm_backward":  # a kernel for each gradient
        inputs = inputs[:3] * len(outputs) + inputs[3:]
    elif ours:  # arguments of a kernel, some of them twice
        inputs = args[0]
    flops = 0
    if count := count_flops(func):
        shaped = (arg for arg in args if not isinstance(arg, torch.dtype))  # formulas of products take no dtype of sums
        flops = count(*shaped, **kwargs, out_val=out)
        flops *= 1 if any(operand.dtype == torch.bfloat16 for operand in inputs) else FLOAT32_SLOWDOWN
    if causal:  # everywhere: a kernel skips the masked half of the scores
        flops //= 2
    kind: Kind
    if flops:
        kind = "fused" if ours else "product"
    else:
        kind = "other" if ours else "eager"
    if causal:
        queries, direction = (args[1], "backward") if "backward" in name else (args[0], "forward")
        kind = Attention("sdpa", direction, queries.shape[-1])
    elif ours and args[2] in ("forward_kernel", *BACKWARD_KERNELS):
        kind = Attention("triton", "backward" if args[2] in BACKWARD_KERNELS else "forward", inputs[0].shape[-1])
    return Operation(kind, flops, touched_bytes(inputs) + touched_bytes(outputs))


def count_flops(func: Any) -> Any:
    """The registered formula for the FLOPs of an operator, or None if it multiplies no matrices."""
    return flop_registry.get(ATTENTION_OPERATORS.get(func.overloadpacket, func.overloadpacket))


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors among arguments or results, each once."""
    return list({id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}.values())


def touched_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors, of which those that are expanded have less than their shapes say."""
    return sum(
        tensor.itemsize * math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
        for tensor in tensors
    )
