"""One causal attention over content and position values; picks the backend.

Shapes as in model/position.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatape.config import ModelConfig
from megatape.kernels.blocked_attention import blocked_attention
from megatape.kernels.rotation import rotate
from megatape.parallel.collectives import SINGLE, TensorRanks, gather_tokens, gathered_again, tokens_to_channels
from megatape.parallel.layers import ColumnLinear, RowLinear


class Attention(nn.Module):
    """Grouped-query attention whose queries and keys are rotated by the position tensor (docs/model.md)."""

    def __init__(self, config: ModelConfig, ranks: TensorRanks = SINGLE) -> None:
        super().__init__()
        self.head_dim, self.ranks = config.head_dim, ranks
        self.carries_state = config.encoding == "tape"  # otherwise e is a function of positions that every rank has
        self.query = ColumnLinear(config.hidden_size, config.num_heads * config.head_dim, ranks)
        self.key = ColumnLinear(config.hidden_size, config.num_kv_heads * config.head_dim, ranks)
        self.value = ColumnLinear(config.hidden_size, config.num_kv_heads * config.head_dim, ranks)
        self.output = RowLinear(config.num_heads * config.head_dim, config.hidden_size, ranks)
        # Held here because ZeRO-3 would gather a weight, one by one, for whoever asks its layer for it.
        self.input_weights = [self.query.weight, self.key.weight, self.value.weight]

    def forward(self, h: Tensor, e: Tensor, starts: Tensor | None, move: bool) -> tuple[Tensor, Tensor | None]:
        """h: [B, N/T, C]; e: [B, N/T, L, R], or for `rope` [B, N, L/T, R]; starts: [B, N] or None, first token that each token may see.

        Returns the output [B, N/T, C] and, if `move` is set, A e of this rank's query heads [B, N, H/T, R]."""
        whole = gather_tokens(h, self.ranks)
        with gathered_again(h, whole, self.input_weights, self.ranks):
            q, k, v = (layer(whole).unflatten(-1, (-1, self.head_dim)) for layer in (self.query, self.key, self.value))
        content, moved = attend(q, k, v, tokens_to_channels(e, self.ranks) if self.carries_state else e, starts, move)
        return self.output(content.flatten(2)), moved


def backend(device_type: str, move: bool) -> str:
    """Name of the attention that runs on this kind of device, with (`move`) or without position values."""
    return "blocked" if device_type == "cpu" and move else "sdpa"


def attend(q: Tensor, k: Tensor, v: Tensor, e: Tensor, starts: Tensor | None, move: bool) -> tuple[Tensor, Tensor | None]:
    """Causal attention with q [B, N, H, R] and k [B, N, L, R] rotated by e [B, N, L, R], over v and, if `move`, e.

    Returns A v and A e (or None), each [B, N, H, R] in the dtype of v."""
    if backend(q.device.type, move) == "blocked":
        return blocked_attention(q, k, v, e, starts)
    return sdpa_attention(q, k, v, e, starts, move)


def sdpa_attention(
    q: Tensor, k: Tensor, v: Tensor, e: Tensor, starts: Tensor | None, move: bool
) -> tuple[Tensor, Tensor | None]:
    """`attend` by one call of PyTorch's scaled dot product attention over [v | e]; also the reference for the kernels."""
    groups = q.shape[2] // k.shape[2]
    values = torch.cat([v, e.to(v.dtype)], dim=-1) if move else v
    # [B, heads, N, .]; keys and values are repeated because not every backend of SDPA knows grouped queries.
    queries, keys = rotate(q, e).to(v.dtype).transpose(1, 2), rotate(k, e).to(v.dtype).transpose(1, 2)
    keys, values = keys.repeat_interleave(groups, 1), values.transpose(1, 2).repeat_interleave(groups, 1)
    if starts is None:
        out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    else:
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible(starts)[:, None])
    out = out.transpose(1, 2)
    if not move:
        return out, None
    content, moved = out.chunk(2, dim=-1)
    return content, moved


def visible(starts: Tensor) -> Tensor:
    """[B, N, N] mask, true where a query (row) may see a key: not later than itself, not before its document's start."""
    index = torch.arange(starts.shape[1], device=starts.device)
    return (index <= index[:, None]) & (index >= starts[..., None])
