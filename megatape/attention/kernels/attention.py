"""The kernels as one differentiable operation, and the sizes of their tiles.

Shapes as in model/transformer.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
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
from megatape.attention.kernels.tiles import width
from megatape.attention.rotation import PositionState
from megatape.nn.kernels.launch import launch


@dataclass(frozen=True)
class Tile:
    """Queries and keys that a program works on at once, its warps, and how many steps ahead it loads."""

    queries: int
    keys: int
    warps: int
    stages: int


# By kernel and width of a head, in bfloat16: the fastest of up to 17 on an H200. TAPE's attention takes 0.72 to 0.79 of its
# time by tiles that were chosen from registers and shared memory alone (docs/kernels.md).
TILES = {
    (forward_kernel, 64): Tile(64, 64, 4, 3),
    (forward_kernel, 128): Tile(128, 64, 8, 3),
    (queries_kernel, 64): Tile(64, 64, 4, 2),
    (queries_kernel, 128): Tile(128, 64, 8, 2),
    (keys_kernel, 64): Tile(64, 64, 4, 2),
    (keys_kernel, 128): Tile(32, 128, 8, 2),
    (distances_kernel, 64): Tile(64, 64, 8, 2),
    (distances_kernel, 128): Tile(64, 64, 8, 2),
}
# bytes of shared memory that a program can have
H100_MEMORY = 227 * 1024
A100_MEMORY = 163 * 1024
# Tiles for a device with less shared memory than an H100, and than an A100: large, but within it, and with hardly a register
# spilled inside the loops. Compiled, not measured.
SMALLER_TILES = (
    (
        H100_MEMORY,
        {
            (forward_kernel, 128): Tile(64, 64, 8, 2),
            (queries_kernel, 128): Tile(128, 32, 8, 2),
            (keys_kernel, 128): Tile(64, 64, 8, 2),
        },
    ),
    (A100_MEMORY, {(queries_kernel, 128): Tile(64, 32, 4, 2), (keys_kernel, 128): Tile(32, 64, 8, 2)}),
)
# Matrix products for each pair of a query and a key: of attention to content, and those more that the state takes.
PRODUCTS = {forward_kernel: (2, 1), queries_kernel: (3, 1), keys_kernel: (4, 2), distances_kernel: (2, 0)}
FLOAT_TILE = Tile(32, 32, 8, 1)
# Tiles to try, by name of the kernel. They take the place of all tiles above (lab/benchmark/tiles.py).
TRIAL_TILES: dict[str, Tile] = {}


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: PositionState | None,
    by_distance: Tensor | None,
    document_starts: DocumentStarts,
    move: bool,
) -> tuple[Tensor, Tensor | None]:
    """Causal attention; arguments and results as in operation.attend, where e is as wide as the heads.

    by_distance: float32 [H, N], a bias on scores, or None.
    """
    initial, delta = state or (None, None)
    return _FusedAttention.apply(q, k, v, initial, delta, move, by_distance, document_starts)


def select_tile(kernel: Callable[..., Any], x: Tensor) -> Tile:
    """The tile with which `kernel` runs on x, by the dtype, the head size and the device of x."""
    if kernel.__name__ in TRIAL_TILES:
        return TRIAL_TILES[kernel.__name__]
    if x.dtype == torch.float32:
        return FLOAT_TILE
    case = kernel, max(width(x.shape[-1]), 64)
    tile = TILES[case]
    for memory, smaller in SMALLER_TILES:
        if shared_memory(x.device) < memory:
            tile = smaller.get(case, tile)
    return tile


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program can have; on shapes alone as much as an H100's."""
    if device.type != "cuda":
        return H100_MEMORY
    properties: Any = torch.cuda.get_device_properties(device)  # whose stub lacks the field
    return int(properties.shared_memory_per_block_optin)


class _FusedAttention(torch.autograd.Function):
    """Keeps its arguments and results and one number per query; rotated queries and keys are computed again.

    moves: whether e is a value, too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        initial: Tensor | None,
        delta: Tensor | None,
        moves: bool,
        by_distance: Tensor | None,
        document_starts: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        q = q.contiguous()
        k = k.contiguous()
        v = v.contiguous()
        initial, delta = (None if part is None else part.contiguous() for part in (initial, delta))
        starts = None if document_starts is None else document_starts.contiguous()
        rotated_k, e = (k, None) if initial is None else rotated_with_state(k, initial, delta, moves)
        content = torch.empty_like(q)
        position = None if e is None else torch.empty_like(q)
        log_sum = q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
        _launch(
            forward_kernel, q, k, q=q, k=rotated_k, v=v, e=e, initial=initial, delta=delta, bias=_to_base_2(by_distance),
            starts=starts, content=content, position=position, log_sum=log_sum,
        )  # fmt: skip
        ctx.moves = moves
        ctx.save_for_backward(q, k, v, initial, delta, by_distance, starts, content, position, log_sum)
        return content, position

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_content: Tensor, d_position: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, initial, delta, by_distance, starts, content, position, log_sum = ctx.saved_tensors
        d_content = d_content.contiguous()
        d_position = None if d_position is None else d_position.contiguous()
        rotated_k, e = (k, None) if initial is None else rotated_with_state(k, initial, delta, ctx.moves)
        rotated_q = q if initial is None else rotated(q, k, initial, delta)
        d_q = torch.empty_like(q)
        d_k = torch.empty_like(k)
        d_v = torch.empty_like(v)
        d_delta, d_state = (None, None) if delta is None else (torch.empty_like(delta), torch.empty_like(q))
        row_sum = torch.empty_like(log_sum)
        bias = _to_base_2(by_distance)
        _launch(
            queries_kernel, q, k, q=q, rotated_q=rotated_q, k=rotated_k, v=v, e=e, initial=initial, delta=delta, bias=bias,
            starts=starts, content=content, position=position, log_sum=log_sum, d_content=d_content, d_position=d_position,
            d_q=d_q, d_state=d_state, row_sum=row_sum,
        )  # fmt: skip
        _launch(
            keys_kernel, q, k, rotated_q=rotated_q, k=k, rotated_k=rotated_k, v=v, e=e, initial=initial, delta=delta, bias=bias,
            ends=None if starts is None else _ends(starts), log_sum=log_sum, row_sum=row_sum, d_content=d_content,
            d_position=d_position, d_state=d_state, d_k=d_k, d_v=d_v, d_delta=d_delta,
        )  # fmt: skip
        d_by_distance = None
        if ctx.needs_input_grad[6]:  # ALiBi's numbers are constant
            parts = log_sum.new_zeros(2, *log_sum.shape)
            _launch(
                distances_kernel, q, k, q=q, k=k, v=v, bias=bias, starts=starts, log_sum=log_sum, row_sum=row_sum,
                d_content=d_content, parts=parts,
            )  # fmt: skip
            d_by_distance = parts.sum((0, 1))
        return d_q, d_k, d_v, None, d_delta, None, d_by_distance, None


def _to_base_2(by_distance: Tensor | None) -> Tensor | None:
    """A bias as the kernels take it, for powers of two."""
    return None if by_distance is None else (by_distance * LOG2_E.value).contiguous()


def _ends(starts: Tensor) -> Tensor:
    """[B, N], the token after the last one that sees each token. starts: [B, N], which never decreases within a sample."""
    tokens = torch.arange(starts.shape[1], device=starts.device, dtype=starts.dtype)
    return torch.searchsorted(starts, tokens.expand_as(starts).contiguous(), right=True)


def _launch(kernel: Any, q: Tensor, k: Tensor, /, **tensors: Tensor | None) -> None:
    """Runs a kernel on every head.

    keys_kernel runs on blocks of keys, distances_kernel on diagonals of square tiles, and the others on blocks of queries.
    """
    batch, length, heads, size = q.shape
    tile = select_tile(kernel, q)
    rows, programs = (tile.keys, k.shape[2]) if kernel is keys_kernel else (tile.queries, heads)
    of_content, of_state = PRODUCTS[kernel]
    flops = (of_content + (0 if tensors.get("e") is None else of_state)) * batch * heads * length**2 * size
    _run(
        kernel, (triton.cdiv(length, rows), programs, batch), flops, tile, **tensors, length=length, heads=heads,
        scale=size**-0.5, GROUP=heads // k.shape[2], SIZE=size, WIDTH=width(size), QUERIES=tile.queries, KEYS=tile.keys,
    )  # fmt: skip


def _run(kernel: Any, grid: tuple[int, ...], flops: int, tile: Tile, /, **arguments: Any) -> None:
    """flops: two for each multiply-add, of which half are masked."""
    launch(kernel, grid, flops, tile.warps, tile.stages, arguments)
