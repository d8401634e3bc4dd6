"""Launches of the Triton kernels for given shapes, recorded from tensors without storage."""

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

Shape = tuple[int, int, int, int, int]  # B, N, H, L, R


@dataclass(frozen=True)
class Launch:
    """Launch of a kernel."""

    kernel: Any
    grid: tuple[int, ...]
    tile: Tile
    arguments: dict[str, Any]


class Recorder:
    """Stand-in for `launch` that records launches.

    Attributes:
        launches: Recorded launches.
    """

    def __init__(self, queries: int = 1, keys: int = 1) -> None:
        """Create a recorder.

        Args:
            queries: Queries of a tile, if the kernel has no argument QUERIES.
            keys: Keys of a tile, if the kernel has no argument KEYS.
        """
        self.launches: list[Launch] = []
        self._queries = queries
        self._keys = keys

    def __call__(
        self, kernel: Any, grid: tuple[int, ...], flops: float, warps: int, stages: int, arguments: dict[str, Any]
    ) -> None:
        queries = arguments.get("QUERIES", self._queries)
        keys = arguments.get("KEYS", self._keys)
        self.launches.append(Launch(kernel, grid, Tile(queries, keys, warps, stages), arguments))


def _empty(*sizes: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor without storage that needs a gradient."""
    return torch.empty(*sizes, dtype=dtype, device="meta", requires_grad=True)


def _run_backward(*outputs: Tensor) -> None:
    torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])


def launches(shape: Shape, dtype: torch.dtype, documents: bool, biased: bool = False) -> list[Launch]:
    """Return the launches of attention, forward and backward.

    Args:
        shape: B, N, H, L, R.
        dtype: Data type of queries, keys, values and the second term of e.
        documents: Whether samples are packed documents.
        biased: Whether there is a trained bias by distance, instead of e.
    """
    batch, length, heads, channels, size = shape
    q = _empty(batch, length, heads, size, dtype=dtype)
    k = _empty(batch, length, channels, size, dtype=dtype)
    v = _empty(batch, length, channels, size, dtype=dtype)
    starts = None
    if documents:
        starts = torch.empty(batch, length, dtype=torch.long, device="meta")
    recorder = Recorder()
    with patch.object(attention, "launch", recorder):
        if biased:
            by_distance = _empty(heads, length, dtype=torch.float32)
            content, _ = fused_attention(q, k, v, None, by_distance, starts, False)
            _run_backward(content)
        else:
            initial = torch.empty(batch, length, 1, size, device="meta")
            state = PositionState(initial, _empty(batch, length, channels, size, dtype=dtype))
            content, attended_state = fused_attention(q, k, v, state, None, starts, True)
            assert attended_state is not None
            _run_backward(content, attended_state)
    return recorder.launches


def rotation_launches(shape: Shape, dtype: torch.dtype) -> list[Launch]:
    """Return the launches of a rotation by a state that attention moves. See `launches` for the arguments."""
    batch, length, heads, channels, size = shape
    q = _empty(batch, length, heads, size, dtype=dtype)
    k = _empty(batch, length, channels, size, dtype=dtype)
    delta = _empty(batch, length, channels, size, dtype=dtype)
    initial = torch.empty(batch, length, 1, size, device="meta")
    recorder = Recorder(queries=rotation.ROWS)
    with patch.object(rotation, "launch", recorder):
        rotated_q, rotated_k, e = Rotation.apply(q, k, initial, delta, True)
        assert e is not None
        _run_backward(rotated_q, rotated_k, e)
    return recorder.launches


def update_launches(shape: Shape, inner: int, dtype: torch.dtype, programs: int) -> list[Launch]:
    """Return the launches of the position update.

    Args:
        shape: B, N, H, L, R.
        inner: Inner size I.
        dtype: Data type of weights and arguments.
        programs: Number of programs, in place of update.PROGRAMS.
    """
    batch, length, heads, channels, size = shape
    initial = torch.empty(batch, length, 1, size, device="meta")
    arguments = [
        _empty(batch, length, channels, size, dtype=dtype),  # delta
        _empty(batch, length, heads, size, dtype=dtype),  # A e
        _empty(heads, dtype=dtype),  # gain
        _empty(batch, length, inner, dtype=dtype),
        _empty(inner, channels, dtype=dtype),
        _empty(channels, inner, dtype=dtype),
    ]
    recorder = Recorder()
    with patch.object(update, "launch", recorder), patch.object(update, "PROGRAMS", programs):
        _run_backward(fused_update(initial, *arguments))
    return recorder.launches


def loss_launches(num_tokens: int, vocab: int) -> list[Launch]:
    """Return the launches of the loss and its gradient in one chunk, with a soft-cap, in bfloat16."""
    x = _empty(1, num_tokens, 64, dtype=torch.bfloat16)
    weight = _empty(vocab, 64, dtype=torch.bfloat16)
    targets = torch.empty(1, num_tokens, dtype=torch.long, device="meta")
    formula = loss.LossFormula(vocab, SINGLE, softcap=30.0, by_kernel=True)
    recorder = Recorder()
    with patch.object(loss_kernel, "launch", recorder), patch.object(loss, "MAX_KERNEL_LOGITS", num_tokens * vocab):
        loss.cross_entropy(x, weight, targets, formula)
    return recorder.launches
