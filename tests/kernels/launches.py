"""Recording launches of the Triton kernels for given shapes, from tensors without storage."""

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from megatape.attention.kernels import head_launches, rotation
from megatape.attention.kernels.attention import fused_attention
from megatape.attention.kernels.rotation import KernelRotation
from megatape.attention.kernels.tile_sizes import Tile
from megatape.attention.rotation import PositionState
from megatape.distributed.mesh import SINGLE
from megatape.encodings.kernels import update
from megatape.encodings.kernels.update import fused_update
from megatape.nn import loss
from megatape.nn.kernels import devices
from megatape.nn.kernels import loss as loss_kernel

Shape = tuple[int, int, int, int, int]  # B, N, H, L, R


@dataclass(frozen=True)
class Launch:
    """A kernel launch."""

    kernel: Any
    grid: tuple[int, ...]
    tile: Tile
    arguments: dict[str, Any]


class Recorder:
    """Stand-in for `launch`, recording launches.

    Attributes:
        launches: Recorded launches.
    """

    def __init__(self, queries: int = 1, keys: int = 1) -> None:
        """Create a recorder.

        Args:
            queries: Queries per tile, if the kernel has no argument QUERIES.
            keys: Keys per tile, if the kernel has no argument KEYS.
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
    """Return a tensor without storage, requiring a gradient."""
    return torch.empty(*sizes, dtype=dtype, device="meta", requires_grad=True)


def _run_backward(*outputs: Tensor) -> None:
    torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])


def launches(shape: Shape, dtype: torch.dtype, documents: bool, biased: bool = False, decays: bool = False) -> list[Launch]:
    """Return attention's launches, forward and backward.

    Args:
        shape: B, N, H, L, R.
        dtype: Data type for queries, keys, values and the second term of e.
        documents: Whether samples are packed documents.
        biased: Whether there is a trained bias by distance, instead of e.
        decays: Whether summed gates are a bias, besides e.
    """
    batch, length, heads, channels, size = shape
    q = _empty(batch, length, heads, size, dtype=dtype)
    k = _empty(batch, length, channels, size, dtype=dtype)
    v = _empty(batch, length, channels, size, dtype=dtype)
    starts = None
    if documents:
        starts = torch.empty(batch, length, dtype=torch.long, device="meta")
    recorder = Recorder()
    with patch.object(head_launches, "launch", recorder):
        if biased:
            by_distance = _empty(heads, length, dtype=torch.float32)
            content, _ = fused_attention(q, k, v, None, by_distance, None, starts, False)
            _run_backward(content)
        else:
            initial = torch.empty(batch, length, 1, size, device="meta")
            state = PositionState(initial, _empty(batch, length, channels, size, dtype=dtype))
            decay = None
            if decays:
                decay = _empty(batch, length, heads, dtype=torch.float64)
            content, attended_state = fused_attention(q, k, v, state, None, decay, starts, True)
            assert attended_state is not None
            _run_backward(content, attended_state)
    return recorder.launches


def rotation_launches(shape: Shape, dtype: torch.dtype) -> list[Launch]:
    """Return the launches for rotating by a state that attention moves. See `launches` for the arguments."""
    batch, length, heads, channels, size = shape
    q = _empty(batch, length, heads, size, dtype=dtype)
    k = _empty(batch, length, channels, size, dtype=dtype)
    delta = _empty(batch, length, channels, size, dtype=dtype)
    initial = torch.empty(batch, length, 1, size, device="meta")
    recorder = Recorder(queries=rotation.ROWS)
    with patch.object(rotation, "launch", recorder):
        rotated_q, rotated_k, e = KernelRotation.apply(q, k, initial, delta, True)
        assert e is not None
        _run_backward(rotated_q, rotated_k, e)
        _, values = rotation.rotated_with_values(k, k, initial, delta)
        rotation.rotate_backward(q, k, initial, delta, q, k, None, d_values=values, d_v=k)
    return recorder.launches


def update_launches(
    shape: Shape, inner: int, dtype: torch.dtype, processors: int = devices.H100_MULTIPROCESSORS
) -> list[Launch]:
    """Return the launches for updating the position state.

    Args:
        shape: B, N, H, L, R.
        inner: Inner size I.
        dtype: Data type for weights and arguments.
        processors: Number of multiprocessors.
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
    with patch.object(update, "launch", recorder), patch.object(devices, "num_multiprocessors", lambda device: processors):
        _run_backward(fused_update(initial, *arguments))
    return recorder.launches


def loss_launches(num_tokens: int, vocab: int) -> list[Launch]:
    """Return the launches for computing the loss and its gradient in one chunk, with a soft-cap, in bfloat16."""
    x = _empty(1, num_tokens, 64, dtype=torch.bfloat16)
    weight = _empty(vocab, 64, dtype=torch.bfloat16)
    targets = torch.empty(1, num_tokens, dtype=torch.long, device="meta")
    formula = loss.LossFormula(vocab, SINGLE, softcap=30.0, by_kernel=True)
    recorder = Recorder()
    with patch.object(loss_kernel, "launch", recorder), patch.object(loss, "MAX_KERNEL_LOGITS", num_tokens * vocab):
        loss.cross_entropy(x, weight, targets, formula)
    return recorder.launches
