"""Attention by our kernels as one differentiable function. attention/backends/blocked.py does the same in plain PyTorch.

Shapes as in model/transformer.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.attention.backend import DocumentStarts
from megatape.attention.kernels.backward import keys_kernel, queries_kernel
from megatape.attention.kernels.distances import distances_kernel
from megatape.attention.kernels.forward import LOG2_E, forward_kernel
from megatape.attention.kernels.rotation import rotated, rotated_with_state
from megatape.attention.kernels.tile_sizes import select_tile
from megatape.attention.kernels.tiles import width
from megatape.attention.rotation import PositionState
from megatape.nn.kernels.launch import Argument, Kernel, launch

# Index of the bias by distance among the arguments of _FusedAttention
BY_DISTANCE = 6


@dataclass(frozen=True)
class Products:
    """Number of matrix products per query-key pair.

    Attributes:
        content: Products for the content.
        state: Additional products for moving the state.
    """

    content: int
    state: int


PRODUCTS = {
    forward_kernel: Products(content=2, state=1),
    queries_kernel: Products(content=3, state=1),
    keys_kernel: Products(content=4, state=2),
    distances_kernel: Products(content=2, state=0),
}


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: PositionState | None,
    by_distance: Tensor | None,
    document_starts: DocumentStarts,
    moves_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute causal attention by our kernels. Same results as `attend`, with e as wide as the heads.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        v: Values [B, N, L, R].
        state: Position tensor, or None.
        by_distance: Bias on the scores, float32 [H, N], or None.
        document_starts: Index of the first token of each token's document, [B, N], or None.
        moves_state: Whether to average e with the same weights as the values.
    """
    initial, delta = state or (None, None)
    return _FusedAttention.apply(q, k, v, initial, delta, moves_state, by_distance, document_starts)


class _FusedAttention(torch.autograd.Function):
    """A v and A e [B, N, H, R], or None without moving the state.

    Saves arguments, results and one number per query. The backward pass recomputes rotated queries and keys.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        initial: Tensor | None,
        delta: Tensor | None,
        moves_state: bool,
        by_distance: Tensor | None,
        document_starts: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        q = q.contiguous()
        k = k.contiguous()
        v = v.contiguous()
        initial = _contiguous(initial)
        delta = _contiguous(delta)
        starts = _contiguous(document_starts)
        rotated_k, e = _rotated_keys(k, initial, delta, moves_state)
        content = torch.empty_like(q)
        attended_state = None if e is None else torch.empty_like(q)
        log_sum = q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)  # [B, H, N]
        _launch(
            forward_kernel,
            q,
            k,
            # Inputs
            q=q,
            k=rotated_k,
            v=v,
            e=e,
            initial=initial,
            delta=delta,
            bias=_to_base_2(by_distance),
            starts=starts,
            # Outputs
            content=content,
            attended_state=attended_state,
            log_sum=log_sum,
        )
        ctx.moves_state = moves_state
        ctx.save_for_backward(q, k, v, initial, delta, by_distance, starts, content, attended_state, log_sum)
        return content, attended_state

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        d_content: Tensor,
        d_attended_state: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        q, k, v, initial, delta, by_distance, starts, content, attended_state, log_sum = ctx.saved_tensors
        bias = _to_base_2(by_distance)
        d_content = d_content.contiguous()
        d_attended_state = _contiguous(d_attended_state)
        rotated_k, e = _rotated_keys(k, initial, delta, ctx.moves_state)
        rotated_q = q if initial is None else rotated(q, k, initial, delta)

        d_q = torch.empty_like(q)
        d_state = None if delta is None else torch.empty_like(q)
        row_sum = torch.empty_like(log_sum)
        _launch(
            queries_kernel,
            q,
            k,
            # Inputs
            q=q,
            rotated_q=rotated_q,
            k=rotated_k,
            v=v,
            e=e,
            initial=initial,
            delta=delta,
            bias=bias,
            starts=starts,
            content=content,
            attended_state=attended_state,
            log_sum=log_sum,
            d_content=d_content,
            d_attended_state=d_attended_state,
            # Outputs
            d_q=d_q,
            d_state=d_state,
            row_sum=row_sum,
        )

        ends = None
        if starts is not None:
            ends = _ends(starts)
        d_k = torch.empty_like(k)
        d_v = torch.empty_like(v)
        d_delta = None if delta is None else torch.empty_like(delta)
        _launch(
            keys_kernel,
            q,
            k,
            # Inputs
            rotated_q=rotated_q,
            k=k,
            rotated_k=rotated_k,
            v=v,
            e=e,
            initial=initial,
            delta=delta,
            bias=bias,
            ends=ends,
            log_sum=log_sum,
            row_sum=row_sum,
            d_content=d_content,
            d_attended_state=d_attended_state,
            d_state=d_state,
            # Outputs
            d_k=d_k,
            d_v=d_v,
            d_delta=d_delta,
        )

        d_by_distance = None
        # ALiBi's bias needs no gradient.
        if ctx.needs_input_grad[BY_DISTANCE]:
            parts = log_sum.new_zeros(2, *log_sum.shape)
            _launch(
                distances_kernel,
                q,
                k,
                # Inputs
                q=q,
                k=k,
                v=v,
                bias=bias,
                starts=starts,
                log_sum=log_sum,
                row_sum=row_sum,
                d_content=d_content,
                # Output
                parts=parts,
            )
            d_by_distance = parts.sum((0, 1))
        return d_q, d_k, d_v, None, d_delta, None, d_by_distance, None


def _contiguous(x: Tensor | None) -> Tensor | None:
    if x is None:
        return None
    return x.contiguous()


def _rotated_keys(
    k: Tensor,
    initial: Tensor | None,
    delta: Tensor | None,
    moves_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the rotated keys, and e as a value if `moves_state`."""
    if initial is None:
        return k, None
    return rotated_with_state(k, initial, delta, moves_state)


def _to_base_2(by_distance: Tensor | None) -> Tensor | None:
    """Return a bias times log2(e), because kernels compute powers of two."""
    if by_distance is None:
        return None
    return (by_distance * LOG2_E.value).contiguous()


def _ends(starts: Tensor) -> Tensor:
    """Return the token after the last one seeing each token, [B, N]. `starts` [B, N] never decreases within a sample."""
    tokens = torch.arange(starts.shape[1], device=starts.device, dtype=starts.dtype)
    return torch.searchsorted(starts, tokens.expand_as(starts).contiguous(), right=True)


def _launch(kernel: Kernel, q: Tensor, k: Tensor, /, **tensors: Tensor | None) -> None:
    """Run a kernel on every head.

    keys_kernel runs on key blocks, distances_kernel on diagonals of square tiles, the others on query blocks.
    """
    batch, length, heads, size = q.shape
    tile = select_tile(kernel, q)
    rows = tile.queries
    programs = heads
    if kernel is keys_kernel:
        rows = tile.keys
        programs = k.shape[2]
    num_products = PRODUCTS[kernel].content
    if tensors.get("e") is not None:
        num_products += PRODUCTS[kernel].state
    # Two for each multiply-add. Half of the scores are masked.
    flops = num_products * batch * heads * length**2 * size
    arguments: dict[str, Argument] = {
        **tensors,
        # Sizes
        "length": length,
        "heads": heads,
        "scale": size**-0.5,
        # Compile-time sizes
        "GROUP": heads // k.shape[2],
        "SIZE": size,
        "WIDTH": width(size),
        "QUERIES": tile.queries,
        "KEYS": tile.keys,
    }
    grid = (triton.cdiv(length, rows), programs, batch)
    launch(kernel, grid, flops, tile.warps, tile.stages, arguments)
