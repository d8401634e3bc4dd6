"""FLOPs and bytes of single operations."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.tools.planner.counting import count
from megatape.tools.planner.operations import FLOAT32_SLOWDOWN, Work

# What one call moves, for x of 6 x 8 in bfloat16.
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
    """Queries, keys and the terms of e are read once, or e twice forward; what is rotated and e are written once."""
    pytest.importorskip("triton")
    from megatape.attention.kernels.rotation import Rotation

    tokens, heads, channels, size = 4096, 8, 2, 64
    q, k, delta = (
        torch.empty(1, tokens, count, size, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for count in (heads, channels, channels)
    )
    with count() as forward:
        rotated_q, rotated_k, e = Rotation.apply(q, k, torch.empty(1, tokens, 1, size, device="meta"), delta, True)
    assert e is not None
    d_outputs = [torch.empty_like(output) for output in (rotated_q, rotated_k, e)]
    with count() as backward:
        torch.autograd.backward((rotated_q, rotated_k, e), d_outputs)
    angles, of_queries, of_keys = (tokens * size * number for number in (4, 2 * heads, 2 * channels))
    assert _bytes(forward) == 2 * angles + 2 * of_queries + (2 + 3) * of_keys
    assert _bytes(backward) == angles + 3 * of_queries + (3 + 3) * of_keys


def test_bytes_of_the_update_kernel() -> None:
    """Those of docs/kernels.md, 6 forward and 10 backward, and of what is smaller than e: gates, gradients of weights."""
    pytest.importorskip("triton")
    from megatape.nn.kernels.update import PROGRAMS, fused_update

    tokens, channels, size, inner = 4096, 8, 64, 4

    def empty(*sizes: int) -> Tensor:
        return torch.empty(*sizes, dtype=torch.bfloat16, device="meta", requires_grad=True)

    moved, attended = empty(1, tokens, channels, size), empty(1, tokens, channels, size)
    weights = empty(channels), empty(1, tokens, inner), empty(inner, channels), empty(channels, inner)
    with count() as forward:
        out = fused_update(torch.empty(1, tokens, 1, size, device="meta"), moved, attended, *weights)
    with count() as backward:
        out.backward(torch.empty_like(out))
    angles, gates = tokens * size * 4, tokens * inner * 2
    of_weights = 2 * (2 * channels * inner + channels)
    assert _bytes(forward) == 6 * moved.numel() + angles + gates + of_weights
    parts = PROGRAMS * (2 * channels * inner + channels) * 4
    kernel = max(backward, key=lambda operation: operation.bytes)
    assert kernel.bytes == 10 * moved.numel() + angles + 2 * gates + of_weights + parts


def test_kernel_products_match_their_source() -> None:
    pytest.importorskip("triton")
    from megatape.attention.kernels import attention, distances
    from megatape.nn.kernels import update

    found = {kernel: products.content + products.state for kernel, products in attention.PRODUCTS.items()} | update.PRODUCTS
    for kernel, products in found.items():
        parts = [kernel, distances._d_scores] if kernel is attention.distances_kernel else [kernel]
        assert sum(inspect.getsource(part.fn).count("tl.dot(") for part in parts) == products, kernel


def test_products_of_float32_are_slower() -> None:
    with torch.device("meta"), count() as work:
        torch.empty(4, 4) @ torch.empty(4, 4)
    assert [operation.flops for operation in work] == [2 * 4**3 * FLOAT32_SLOWDOWN]
