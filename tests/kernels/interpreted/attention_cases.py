"""Attention by the kernels, compared with its formula in float64."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.bias import Decay, DistanceBias, ScoreBias
from megatape.attention.kernels import head_launches
from megatape.attention.kernels.tile_sizes import Tile
from megatape.attention.rotation import PositionState, rotate
from tests.helpers.models import biased_attention
from tests.helpers.models.attention import initial_state, inputs, plain, random_document_starts
from tests.kernels.interpreted.comparison import compare, in_float64
from tests.kernels.launches import Shape

TALL = Tile(32, 16, 1, 1)
WIDE = Tile(16, 32, 1, 1)
SQUARE = Tile(16, 16, 1, 1)


@dataclass(frozen=True)
class AttentionCase:
    """An attention call.

    Attributes:
        shape: B, N, H, L, R.
        tile: Tile replacing a GPU's, so that loops have several steps.
        dtype: Data type for queries, keys and values.
        averages_state: Whether attention averages e.
        rotates: Whether e rotates queries and keys if attention does not move it.
        delta: Whether e has a second term.
        documents: Whether samples are packed documents.
        wide: Whether e is twice as wide as heads.
        biased: Whether there is a bias by distance.
        window: Number of tokens attended to by each token, or None.
        decays: Whether summed gates are a bias.
    """

    shape: Shape
    tile: Tile
    dtype: torch.dtype = torch.float32
    averages_state: bool = True
    rotates: bool = False
    delta: bool = True
    documents: bool = True
    wide: bool = False
    biased: bool = False
    window: int | None = None
    decays: bool = False

    @property
    def has_state(self) -> bool:
        """Whether attention gets e."""
        return self.averages_state or self.rotates


ATTENTION = [
    # Groups, and lengths not divisible by either side of a tile
    AttentionCase((2, 40, 2, 1, 16), TALL),
    # Padded heads
    AttentionCase((1, 50, 1, 1, 20), WIDE, documents=False),
    AttentionCase((1, 40, 1, 1, 4), WIDE, delta=False),
    AttentionCase((1, 40, 2, 1, 16), TALL, averages_state=False),
    AttentionCase((1, 40, 2, 1, 16), TALL, averages_state=False, rotates=True),
    AttentionCase((1, 40, 2, 2, 4), WIDE, averages_state=False, rotates=True, delta=False),
    AttentionCase((1, 20, 2, 1, 4), TALL, wide=True),
    AttentionCase((1, 40, 2, 2, 32), WIDE, torch.bfloat16),
    AttentionCase((2, 40, 2, 1, 16), TALL, averages_state=False, biased=True),
    AttentionCase((1, 50, 2, 2, 4), WIDE, averages_state=False, biased=True, documents=False),
    AttentionCase((1, 40, 2, 1, 16), TALL, averages_state=False, rotates=True, biased=True),
    AttentionCase((1, 40, 2, 1, 32), WIDE, torch.bfloat16, averages_state=False, biased=True),
    # Windows below, at and above a tile's side, alone and within documents
    AttentionCase((1, 50, 1, 1, 4), TALL, documents=False, window=5),
    AttentionCase((1, 70, 2, 1, 4), WIDE, window=32),
    AttentionCase((1, 50, 1, 1, 4), WIDE, averages_state=False, biased=True, documents=False, window=20),
]
# Decay by gates (FoX), alone and moving the state, with grouped heads and documents
ATTENTION += [
    AttentionCase((2, 40, 2, 1, 16), TALL, averages_state=False, decays=True),
    AttentionCase((1, 50, 6, 2, 4), WIDE, documents=False, decays=True),
    AttentionCase((1, 40, 2, 2, 16), WIDE, delta=False, decays=True, window=20),
    AttentionCase((1, 40, 2, 1, 32), WIDE, torch.bfloat16, decays=True),
]


def attention_differences(case: AttentionCase) -> dict[str, float]:
    """Compare attention with the formula in float64 for the same rounded arguments."""
    batch, length, heads, _, size = case.shape
    q, k, v, delta = inputs(case.shape, case.dtype)
    if case.wide:
        delta = delta.detach().repeat(1, 1, 1, 2).requires_grad_()
    document_starts = None
    if case.documents:
        document_starts = random_document_starts(batch, length)
    arguments = {"q": q, "k": k, "v": v}
    if case.has_state and case.delta:
        arguments["delta"] = delta
    if case.biased:
        arguments["bias"] = torch.randn(heads, length, generator=torch.Generator().manual_seed(0)).requires_grad_()
    if case.decays:
        # Gates averaging about 0.5, after some thousand tokens
        log_gates = torch.randn(batch, length, heads, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.7
        arguments["decay"] = (log_gates.cumsum(1) - 3000).requires_grad_()
    exact = in_float64(arguments)
    initial = initial_state(delta)
    if not case.has_state:  # a rotation by zero
        initial = torch.tensor([1.0, 0.0]).repeat_interleave(size // 2).expand_as(initial)

    outputs = kernel_attention(case, arguments, initial, document_starts)
    expected = exact_attention(case, exact, initial, document_starts)

    names = ["A v", "A e"][: len(outputs)]
    return compare(dict(zip(names, outputs, strict=True)), dict(zip(names, expected, strict=False)), arguments, exact)


def kernel_attention(
    case: AttentionCase, arguments: dict[str, Tensor], initial: Tensor, document_starts: Tensor | None
) -> list[Tensor]:
    """Return A v, and A e if attention moves e."""

    def select_tile(kernel: Any, x: Tensor) -> Tile:
        if kernel is head_launches.distances_kernel:
            return SQUARE
        return case.tile

    state = None
    if case.has_state:
        state = PositionState(initial, arguments.get("delta"))
    bias: ScoreBias | None = None
    if case.biased:
        bias = DistanceBias(arguments["bias"])
    if case.decays:
        bias = Decay(arguments["decay"])
    q, k, v = (arguments[name] for name in ("q", "k", "v"))
    # The backward pass needs the patched tiles, too.
    head_launches.select_tile = select_tile
    content, attended_state = get_backend("triton").attend(
        q, k, v, state, bias, document_starts, case.averages_state, case.window
    )
    if attended_state is None:
        return [content]
    return [content, attended_state]


def exact_attention(
    case: AttentionCase, exact: dict[str, Tensor], initial: Tensor, document_starts: Tensor | None
) -> tuple[Any, ...]:
    """Return A v, and A e unless there is a bias."""
    batch, length, _, channels, _ = case.shape
    q, k, v = (exact[name] for name in ("q", "k", "v"))
    if case.wide:
        # The formula does not support wide states. Blocked attention in float32 does.
        state = PositionState(initial, exact["delta"].float())
        return get_backend("blocked").attend(q.float(), k.float(), v.float(), state, None, document_starts, True)
    if document_starts is None:
        document_starts = torch.zeros(batch, length, dtype=torch.long)
    if case.window is not None:
        document_starts = torch.maximum(document_starts, torch.arange(length) - case.window + 1)
    e = initial.double().expand(-1, -1, channels, -1)
    if "delta" in exact:
        e = e + exact["delta"]
    if case.biased:
        index = torch.arange(length)
        distances = (index[:, None] - index).clamp(min=0)
        numbers = exact["bias"][:, distances][None]
        return (biased_attention.plain(rotate(q, e), rotate(k, e), v, numbers, document_starts),)
    decay = None
    if case.decays:
        sums = exact["decay"].transpose(1, 2)  # [B, H, N, 1]
        decay = sums - sums.mT
    return plain(q, k, v, e, document_starts, decay)
