"""Attention of short rows on a CPU: all scores in one matrix product for each head, without PyTorch's fused kernel.

With 46 tokens and heads of 16 channels this takes two thirds of the fused kernel's time, forward and backward, and a mask of
documents costs little. With 128 tokens it would take twice the time.
"""

import math
from typing import Any

import torch
from torch import Tensor

from megatape.attention.attend import attend
from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.attention.windows import visible
from megatape.model.attention import Attention
from megatape.model.block import Block

# Maximum number of tokens in a row.
MAX_TOKENS = 64


def attend_short(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    state: PositionState | None = None,
    bias: ScoreBias | None = None,
    document_starts: DocumentStarts = None,
    averages_state: bool = False,
    window: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute causal attention. Arguments and results as in `megatape.attention.attend`."""
    is_short = q.device.type == "cpu" and q.shape[1] <= MAX_TOKENS
    if bias is not None or window is not None or not is_short:
        return attend(
            q,
            k,
            v,
            state=state,
            bias=bias,
            document_starts=document_starts,
            averages_state=averages_state,
            window=window,
        )
    values = v
    if averages_state:
        assert state is not None
        values = torch.cat([v, state.tensor(k.shape[2])], dim=-1)
    q, k = rotate_qk(q, k, state)
    attended = _attend(q, k, values, document_starts)
    if not averages_state:
        return attended, None
    width = v.shape[-1]
    return attended[..., :width], attended[..., width:]


def _attend(q: Tensor, k: Tensor, values: Tensor, document_starts: DocumentStarts) -> Tensor:
    """Return A values [B, N, H, width] for queries [B, N, H, R], and keys and values [B, N, L, any width]."""
    batch_size, length, num_heads, head_dim = q.shape
    group_size = num_heads // k.shape[2]
    queries = q.transpose(1, 2).flatten(0, 1)  # [B H, N, R]
    keys = k.repeat_interleave(group_size, 2).transpose(1, 2).flatten(0, 1)
    by_head = values.repeat_interleave(group_size, 2).transpose(1, 2).flatten(0, 1)
    hidden = q.new_full((length, length), -math.inf).triu(1)
    if document_starts is not None:
        hidden = q.new_zeros(batch_size, length, length).masked_fill(~visible(document_starts), -math.inf)
        hidden = hidden.repeat_interleave(num_heads, 0)
    scores = torch.baddbmm(hidden, queries, keys.mT, alpha=head_dim**-0.5)
    attended = scores.softmax(-1) @ by_head  # [B H, N, width]
    return attended.unflatten(0, (batch_size, num_heads)).transpose(1, 2)


class ShortAttention(Attention):
    """Attention layer of short rows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.attend = attend_short
        self.attend_in_training = attend_short


class ShortBlock(Block):
    """Block for short rows. Small models need no savings of memory."""

    attention_class = ShortAttention
