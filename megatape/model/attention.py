"""One causal attention over content and, where an encoding asks for it, the position state; picks the backend.

Shapes as in model/block.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatape.config import ModelConfig
from megatape.kernels.bias import DistanceBias, ScoreBias
from megatape.kernels.blocked_attention import blocked_attention, blocked_biased_attention
from megatape.kernels.flex import LEAST_HEAD, flex_biased_attention
from megatape.kernels.rotation import rotate
from megatape.model.encodings.encoding import Attends, Encoding
from megatape.parallel.collectives import SINGLE, TensorRanks, gather_tokens, gathered_again, tokens_to_channels
from megatape.parallel.layers import ColumnLinear, RowLinear


class Attention(nn.Module):
    """Grouped-query attention, with queries, keys, scores and state as the position encoding wants them (docs/model.md)."""

    def __init__(self, config: ModelConfig, encoding: Encoding, ranks: TensorRanks = SINGLE) -> None:
        super().__init__()
        self.head_dim, self.encoding, self.ranks = config.head_dim, encoding, ranks
        self.query = ColumnLinear(config.hidden_size, config.num_heads * config.head_dim, ranks)
        self.key = ColumnLinear(config.hidden_size, config.num_kv_heads * config.head_dim, ranks)
        self.value = ColumnLinear(config.hidden_size, config.num_kv_heads * config.head_dim, ranks)
        self.output = RowLinear(config.num_heads * config.head_dim, config.hidden_size, ranks)
        # Held here because ZeRO-3 would gather a weight, one by one, for whoever asks its layer for it.
        self.input_weights = [self.query.weight, self.key.weight, self.value.weight]
        self.bias = encoding.bias(ranks)

    def forward(self, h: Tensor, e: Tensor | None, starts: Tensor | None, move: bool) -> tuple[Tensor, Tensor | None]:
        """h: [B, N/T, C]; e: the encoding's state, [B, N/T, L, W] if blocks change it; starts: [B, N] or None, first token that
        each token may see; move: whether anything reads how attention moves the state.

        Returns the output [B, N/T, C] and A e of this rank's query heads [B, N, H/T, W], if attention moves it."""
        whole = gather_tokens(h, self.ranks)
        with gathered_again(h, whole, self.input_weights, self.ranks):
            q, k, v = (layer(whole).unflatten(-1, (-1, self.head_dim)) for layer in (self.query, self.key, self.value))
        if e is not None and self.encoding.carries_state:
            e = tokens_to_channels(e, self.ranks)
        moved = None
        if e is not None and move and self.encoding.attends == "moving":
            content, moved = attend_and_move(q, k, v, e, starts)
        else:
            q, k = self.encoding.turn(q, k, e)
            bias = None if self.bias is None else self.bias.scores(self.bias(q), e)
            content = attend(q, k, v, bias, starts)
        return self.output(content.flatten(2)), moved


def backend(device_type: str, attends: Attends, head_dim: int) -> str:
    """Name of the attention that runs on this kind of device.

    A bias by distance is a lookup, which flex_attention fuses on a GPU. In a bias by pairs every number of its network takes part in
    every score: fused, its gradient would be one atomic addition for each of them, so it goes by blocks there too."""
    if attends == "plain":
        return "sdpa"
    if device_type == "cpu" or attends == "pair bias":
        return "blocked"
    if attends == "moving":
        return "sdpa"
    return "flex" if head_dim >= LEAST_HEAD else "blocked"


def attend_and_move(q: Tensor, k: Tensor, v: Tensor, e: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Causal attention with q [B, N, H, R] and k [B, N, L, R] rotated by e [B, N, L, W], over v and e.

    Returns A v [B, N, H, R] and A e [B, N, H, W] in the dtype of v."""
    if backend(q.device.type, "moving", q.shape[-1]) == "blocked":
        return blocked_attention(q, k, v, e, starts)
    return sdpa_moving_attention(q, k, v, e, starts)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, starts: Tensor | None) -> Tensor:
    """Causal attention of q [B, N, H, R] and k, v [B, N, L, R] with a bias on the scores, or without.

    Returns A v [B, N, H, R] in the dtype of v."""
    if bias is None:
        return sdpa_attention(q, k, v, None, starts)
    kind = backend(q.device.type, "distance bias" if isinstance(bias, DistanceBias) else "pair bias", q.shape[-1])
    if kind == "flex" and isinstance(bias, DistanceBias):
        return flex_biased_attention(q, k, v, bias, starts)
    return blocked_biased_attention(q, k, v, bias, starts) if kind == "blocked" else sdpa_attention(q, k, v, bias, starts)


def sdpa_moving_attention(q: Tensor, k: Tensor, v: Tensor, e: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """`attend_and_move` by one call of PyTorch's scaled dot product attention over [v | e]; also the reference for the kernels."""
    values = torch.cat([v, e.to(v.dtype)], dim=-1)
    out = sdpa_attention(rotate(q, e).to(v.dtype), rotate(k, e).to(v.dtype), values, None, starts)
    return out[..., : v.shape[-1]], out[..., v.shape[-1] :]


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, starts: Tensor | None) -> Tensor:
    """`attend` by PyTorch's scaled dot product attention. With a bias it holds N x N numbers: only as a reference for the kernels."""
    groups, length = q.shape[2] // k.shape[2], q.shape[1]
    # [B, heads, N, .]; keys and values are repeated because not every backend of SDPA knows grouped queries.
    queries, keys, values = (part.transpose(1, 2) for part in (q, k, v))
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    mask = None if starts is None else visible(starts)[:, None]
    if bias is not None:
        if mask is None:
            mask = visible(torch.zeros(1, length, dtype=torch.long, device=q.device))[:, None]
        mask = bias.block(bias.weights, slice(0, length), slice(0, length)).masked_fill(~mask, float("-inf")).to(q.dtype)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None).transpose(1, 2)


def visible(starts: Tensor) -> Tensor:
    """[B, N, N] mask, true where a query (row) may see a key: not later than itself, not before its document's start."""
    index = torch.arange(starts.shape[1], device=starts.device)
    return (index <= index[:, None]) & (index >= starts[..., None])
