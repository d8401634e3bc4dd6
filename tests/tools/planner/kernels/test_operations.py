"""FLOPs and bytes of single operations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.tools.planner.kernels.counting import count
from megatape.tools.planner.kernels.operations import FLOAT32_SLOWDOWN, Work

# Call on x, 6 x 8 in bfloat16, and the bytes moved
CALLS: dict[str, tuple[Callable[[Tensor], Any], float]] = {
    "a view": (lambda x: x.view(8, 6).T[:, 2:], 0),
    "reads and writes": (lambda x: x * 2, 48 * (2 + 2)),
    "a cast": (lambda x: x.float(), 48 * (2 + 4)),
    "both operands": (lambda x: x + x.new_empty(6, 8), 48 * (2 + 2 + 2)),
    "one operand twice": (lambda x: x * x, 48 * (2 + 2)),
    "an expanded operand": (lambda x: x + x[:1].expand(6, 8), 48 * (2 + 2) + 8 * 2),
    "in place": (lambda x: x.mul_(2), 48 * (2 + 2)),
    "filled": (lambda x: torch.zeros_like(x), 48 * 2),
    "copied over": (lambda x: x.new_empty(6, 8).copy_(x), 48 * (2 + 2)),
    "picked rows": (lambda x: F.embedding(torch.zeros(3, dtype=torch.long), x), 3 * (8 + 8) + 3 * 8 * (2 + 2)),
}


@pytest.mark.parametrize("call", CALLS)
def test_bytes_of_a_call(call: str) -> None:
    function, expected = CALLS[call]
    with torch.device("meta"):
        x = torch.empty(6, 8, dtype=torch.bfloat16)
        with count() as work:
            function(x)
    assert _bytes(work) == expected


def _bytes(work: Work) -> float:
    return sum(operation.bytes * times for operation, times in work.items())


def test_bytes_of_the_rotation_kernels() -> None:
    """Queries, keys and the terms of e are read once (e twice in the forward pass). Rotated tensors and e are written once."""
    pytest.importorskip("triton")
    from megatape.attention.kernels.rotation import KernelRotation

    tokens = 4096
    heads = 8
    kv_heads = 2
    size = 64

    def empty(num_heads: int) -> Tensor:
        return torch.empty(1, tokens, num_heads, size, dtype=torch.bfloat16, device="meta", requires_grad=True)

    initial = torch.empty(1, tokens, 1, size, device="meta")
    with count() as forward:
        rotated_q, rotated_k, e = KernelRotation.apply(empty(heads), empty(kv_heads), initial, empty(kv_heads), True)
    assert e is not None
    outputs = (rotated_q, rotated_k, e)
    with count() as backward:
        torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
    angle_bytes = 4 * tokens * size
    query_bytes = 2 * tokens * size * heads
    key_bytes = 2 * tokens * size * kv_heads
    assert _bytes(forward) == 2 * angle_bytes + 2 * query_bytes + (2 + 3) * key_bytes
    assert _bytes(backward) == angle_bytes + 3 * query_bytes + (3 + 3) * key_bytes


def test_bytes_of_the_update_kernel() -> None:
    """The kernel moves 6 bytes per element of e forward and 10 backward (docs/kernels.md), and the smaller tensors."""
    pytest.importorskip("triton")
    from megatape.encodings.kernels.update import fused_update
    from megatape.encodings.kernels.update_kernels import update_backward_kernel
    from megatape.encodings.kernels.update_settings import SETTINGS
    from megatape.nn.kernels.devices import H100_MULTIPROCESSORS

    tokens = 4096
    kv_heads = 8
    size = 64
    inner = 4

    def empty(*sizes: int) -> Tensor:
        return torch.empty(*sizes, dtype=torch.bfloat16, device="meta", requires_grad=True)

    initial = torch.empty(1, tokens, 1, size, device="meta")
    moved = empty(1, tokens, kv_heads, size)
    attended = empty(1, tokens, kv_heads, size)
    weights = (empty(kv_heads), empty(1, tokens, inner), empty(inner, kv_heads), empty(kv_heads, inner))
    with count() as forward:
        out = fused_update(initial, moved, attended, *weights)
    with count() as backward:
        out.backward(torch.empty_like(out))

    angle_bytes = 4 * tokens * size
    gate_bytes = 2 * tokens * inner
    num_weights = 2 * kv_heads * inner + kv_heads
    assert _bytes(forward) == 6 * moved.numel() + angle_bytes + gate_bytes + 2 * num_weights
    num_programs = SETTINGS[update_backward_kernel, True].programs_per_processor * H100_MULTIPROCESSORS
    partial_sums = num_programs * num_weights * 4
    kernel = max(backward, key=lambda operation: operation.bytes)
    assert kernel.bytes == 10 * moved.numel() + angle_bytes + 2 * gate_bytes + 2 * num_weights + partial_sums


def test_products_of_float32_are_slower() -> None:
    with torch.device("meta"), count() as work:
        torch.empty(4, 4) @ torch.empty(4, 4)
    assert [operation.flops for operation in work] == [2 * 4**3 * FLOAT32_SLOWDOWN]
