"""What the Triton kernels would be launched with for given shapes: recorded from tensors without storage."""

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from megatape.attention.kernels import attention, rotation
from megatape.attention.kernels.attention import fused_attention
from megatape.attention.kernels.rotation import Rotation
from megatape.attention.kernels.tile_sizes import Tile
from megatape.attention.rotation import PositionState
from megatape.distributed.mesh import SINGLE
from megatape.encodings.kernels import update
from megatape.encodings.kernels.update import fused_update
from megatape.nn import loss
from megatape.nn.kernels import loss as loss_kernel


@dataclass(frozen=True)
class Launch:
    kernel: Any
    grid: tuple[int, ...]
    tile: Tile
    arguments: dict[str, Any]


def launches(shape: tuple[int, int, int, int, int], dtype: torch.dtype, documents: bool, biased: bool = False) -> list[Launch]:
    """Of a forward and a backward pass. shape: B, N, H, L, R. biased: with a bias by distance that is trained, instead of e."""
    batch, length, heads, channels, size = shape
    recorded: list[Launch] = []
    outputs: tuple[Tensor, ...]

    def record(kernel: Any, grid: tuple[int, ...], flops: float, warps: int, stages: int, arguments: dict[str, Any]) -> None:
        recorded.append(Launch(kernel, grid, Tile(arguments["QUERIES"], arguments["KEYS"], warps, stages), arguments))

    q, k, v, added = (
        torch.empty(batch, length, count, size, dtype=dtype, device="meta", requires_grad=True)
        for count in (heads, channels, channels, channels)
    )
    initial = torch.empty(batch, length, 1, size, device="meta")
    starts = torch.empty(batch, length, dtype=torch.long, device="meta") if documents else None
    with patch.object(attention, "launch", record):
        if biased:
            by_distance = torch.empty(heads, length, device="meta", requires_grad=True)
            content, _ = fused_attention(q, k, v, None, by_distance, starts, False)
            outputs = (content,)
        else:
            content, attended_state = fused_attention(q, k, v, PositionState(initial, added), None, starts, True)
            assert attended_state is not None
            outputs = content, attended_state
        torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
    return recorded


def rotation_launches(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> list[Launch]:
    """Of a rotation by a state that attention moves. shape: as above."""
    batch, length, heads, channels, size = shape
    recorded: list[Launch] = []

    def record(kernel: Any, grid: tuple[int, ...], flops: float, warps: int, stages: int, arguments: dict[str, Any]) -> None:
        recorded.append(Launch(kernel, grid, Tile(rotation.ROWS, 1, warps, stages), arguments))

    q, k, delta = (
        torch.empty(batch, length, count, size, dtype=dtype, device="meta", requires_grad=True)
        for count in (heads, channels, channels)
    )
    with patch.object(rotation, "launch", record):
        rotated_q, rotated_k, e = Rotation.apply(q, k, torch.empty(batch, length, 1, size, device="meta"), delta, True)
        assert e is not None
        outputs = rotated_q, rotated_k, e
        torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
    return recorded


def update_launches(shape: tuple[int, int, int, int, int], inner: int, dtype: torch.dtype, programs: int) -> list[Launch]:
    """Of the position update. shape: as above; inner: I; programs: in place of update.PROGRAMS."""
    batch, length, heads, channels, size = shape
    recorded: list[Launch] = []

    def record(kernel: Any, grid: tuple[int, ...], flops: float, warps: int, stages: int, arguments: dict[str, Any]) -> None:
        recorded.append(Launch(kernel, grid, Tile(1, 1, warps, stages), arguments))

    def empty(*sizes: int) -> Tensor:
        return torch.empty(*sizes, dtype=dtype, device="meta", requires_grad=True)

    initial = torch.empty(batch, length, 1, size, device="meta")
    delta = empty(batch, length, channels, size)
    attended = empty(batch, length, heads, size)
    with patch.object(update, "launch", record), patch.object(update, "PROGRAMS", programs):
        out = fused_update(
            initial, delta, attended, empty(heads), empty(batch, length, inner), empty(inner, channels), empty(channels, inner)
        )
        out.backward(torch.empty_like(out))
    return recorded


def loss_launches(num_tokens: int, vocab: int) -> list[Launch]:
    """Of the loss in one chunk, with a soft-cap and its gradient, in bfloat16."""
    recorded: list[Launch] = []

    def record(kernel: Any, grid: tuple[int, ...], flops: float, warps: int, stages: int, arguments: dict[str, Any]) -> None:
        recorded.append(Launch(kernel, grid, Tile(1, 1, warps, stages), arguments))

    x, weight = (torch.empty(rows, 64, dtype=torch.bfloat16, device="meta", requires_grad=True) for rows in (num_tokens, vocab))
    formula = loss.LossFormula(vocab, SINGLE, softcap=30.0, by_kernel=True)
    with patch.object(loss_kernel, "launch", record), patch.object(loss, "MOST_KERNEL_ELEMENTS", num_tokens * vocab):
        loss.cross_entropy(x[None], weight, torch.empty(1, num_tokens, dtype=torch.long, device="meta"), formula)
    return recorded
