"""GPU operations: runs of kernels, with their FLOPs and bytes."""

import math
from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from megatape.utils.pytorch.torch_internals import ATTENTION_OPERATORS, is_view, tree_leaves

# Time of plain float32 products divided by that of bfloat16 products: 16 on A100 (312 / 19.5 TFLOP/s), 15 on H100 (989 / 67).
FLOAT32_SLOWDOWN = 16

# Operators that overwrite their first argument without reading it
OVERWRITING = ("copy_", "fill_", "zero_")
# Operators that read as much of their first argument as they return
GATHERING = ("embedding", "gather", "index", "index_select")
# Operators that change a few numbers of their first argument in place
SCATTERING = ("scatter_", "scatter_add_", "index_put_")
# The first three arguments of this operator are read once for each gradient: PyTorch launches a kernel for each.
NORM_BACKWARD = "_fused_rms_norm_backward"

# Names of our attention kernels. All of them take queries first.
FORWARD_KERNEL = "forward_kernel"
BACKWARD_KERNELS = ("queries_kernel", "keys_kernel", "distances_kernel")
# Names of FlashAttention-4's operators (megatape/attention/fa4/operators.py). Their second tensor is as wide as a head.
FA4_FORWARD = "fa4"
FA4_BACKWARD = "fa4_backward"


class AttentionBackend(Enum):
    """Attention backends with separate rates. Values are names in training.attention."""

    SDPA = "sdpa"
    FA4 = "fa4"
    TRITON = "triton"


class Direction(Enum):
    """Direction of a pass through the model."""

    FORWARD = auto()
    BACKWARD = auto()


class Attention(NamedTuple):
    """An attention kernel."""

    backend: AttentionBackend
    direction: Direction
    head_dim: int


class KernelKind(Enum):
    """Kinds of kernels other than attention."""

    # A matrix product alone.
    PRODUCT = auto()
    # One of our kernels, which multiplies matrices between other work.
    FUSED_PRODUCTS = auto()
    # A single PyTorch kernel without products.
    EAGER = auto()
    # A fused kernel without products.
    FUSED = auto()


Kind = Attention | KernelKind


class Operation(NamedTuple):
    """One run of a kernel.

    Attributes:
        kind: Kind of kernel.
        flops: FLOPs of its matrix products. float32 products count as the bfloat16 FLOPs that take the same time.
        bytes: Bytes read and written in device memory.
    """

    kind: Kind
    flops: float
    bytes: float


# Number of times that each operation runs.
Work = Counter[Operation]


def operation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Operation | None:
    """Return the kernel that an operator call runs, or None if it moves nothing.

    Args:
        func: ATen operator, or the operator of our launches (nn/kernels/launch.py).
        args: Positional arguments.
        kwargs: Keyword arguments.
        out: Result.
    """
    is_empty = "empty" in func.overloadpacket.__name__
    if is_view(func) or is_empty:
        return None
    inputs, outputs = _read_and_written(func, args, kwargs, out)
    flops = _flops(func, args, kwargs, out, inputs)
    kind = _kind(func, args, inputs, flops)
    return Operation(kind, flops, touched_bytes(inputs) + touched_bytes(outputs))


def _read_and_written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that a call reads and writes. A tensor that one of our kernels reads twice appears twice."""
    name = func.overloadpacket.__name__
    arguments = tensors_of([args, {key: value for key, value in kwargs.items() if key != "out"}])
    results = tensors_of(out)
    if name.startswith("new_") or name.endswith("_like"):
        return [], results
    if name in OVERWRITING:
        return arguments[1:], results
    if name in GATHERING:
        return [*arguments[1:], *results], results
    if name in SCATTERING:
        return arguments[1:], arguments[1:]
    if name == NORM_BACKWARD:
        return arguments[:3] * len(results) + arguments[3:], results
    if name in (FA4_FORWARD, FA4_BACKWARD):
        # A kernel rotates the inputs and writes them again, and another one computes attention.
        return arguments * 3, results
    if _is_launch(func):
        return list(args[0]), results
    return arguments, results


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, inputs: list[Tensor]) -> int:
    """Return the FLOPs of a call's matrix products."""
    formula = count_flops(func)
    if not formula:
        return 0
    # torch's formulas for products do not accept the dtype of sums.
    shaped = [arg for arg in args if not isinstance(arg, torch.dtype)]
    flops = formula(*shaped, **kwargs, out_val=out)
    if not any(operand.dtype == torch.bfloat16 for operand in inputs):
        flops *= FLOAT32_SLOWDOWN
    if _is_attention(func):
        # Kernels skip the masked half of the scores.
        flops //= 2
    return flops


def _kind(func: Any, args: tuple[Any, ...], inputs: list[Tensor], flops: int) -> Kind:
    """Return the kind of a call's kernel."""
    if _is_attention(func):
        if "backward" in func.overloadpacket.__name__:
            return Attention(AttentionBackend.SDPA, Direction.BACKWARD, head_dim=args[1].shape[-1])
        return Attention(AttentionBackend.SDPA, Direction.FORWARD, head_dim=args[0].shape[-1])
    name = func.overloadpacket.__name__
    if name == FA4_FORWARD:
        return Attention(AttentionBackend.FA4, Direction.FORWARD, head_dim=inputs[1].shape[-1])
    if name == FA4_BACKWARD:
        return Attention(AttentionBackend.FA4, Direction.BACKWARD, head_dim=inputs[1].shape[-1])
    if _is_launch(func):
        kernel = args[2]
        if kernel == FORWARD_KERNEL:
            return Attention(AttentionBackend.TRITON, Direction.FORWARD, head_dim=inputs[0].shape[-1])
        if kernel in BACKWARD_KERNELS:
            return Attention(AttentionBackend.TRITON, Direction.BACKWARD, head_dim=inputs[0].shape[-1])
        if flops:
            return KernelKind.FUSED_PRODUCTS
        return KernelKind.FUSED
    if flops:
        return KernelKind.PRODUCT
    return KernelKind.EAGER


def _is_attention(func: Any) -> bool:
    """Whether an operator computes PyTorch's attention."""
    return func.overloadpacket in ATTENTION_OPERATORS


def _is_launch(func: Any) -> bool:
    """Whether an operator launches one of our kernels."""
    return func.namespace != "aten"


def count_flops(func: Any) -> Any:
    """Return torch's FLOP formula for an operator, or None if it multiplies no matrices."""
    return flop_registry.get(ATTENTION_OPERATORS.get(func.overloadpacket, func.overloadpacket))


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors among arguments or results, each once."""
    tensors = {id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}
    return list(tensors.values())


def touched_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors. An expanded dimension has only one element in memory."""
    total = 0
    for tensor in tensors:
        stored = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
        total += tensor.itemsize * math.prod(stored)
    return total
