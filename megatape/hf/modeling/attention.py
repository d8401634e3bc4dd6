"""Attention whose values [v | e] are wider or narrower than its keys. Memory grows linearly with the number of tokens.

Shapes: B batch, N new tokens, K keys (new and cached), H query heads, L key/value heads, R head size, W width of e.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

# Begin and end index of the tokens in each row that are not padding.
Spans = list[tuple[int, int]]


def wide_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    spans: Spans | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute transformers' "sdpa" attention.

    Args:
        module: Attention layer.
        query: [B, H, N, R].
        key: [B, L, K, R].
        value: [B, L, K, any width].
        mask: Mask made by transformers, [B, 1 or H, N, K], true or zero where a key is visible. None for a causal mask.
        scaling: Factor of the scores.
        spans: Spans without padding, instead of a mask. Only possible without a cache (N = K).
        **kwargs: Further arguments of transformers, which are ignored.

    Returns:
        Outputs [B, N, H, width of values], which are zero outside of the spans, and None instead of attention weights.
    """
    width = value.shape[-1]
    extra = width - key.shape[-1]
    if extra and query.shape[2] == 1:
        return one_query_attention(query, key, value, mask, scaling), None

    # PyTorch's flash kernels need keys as wide as values. Padding with zeros keeps the scores, and is faster than calculating
    # them twice.
    if extra < 0:
        value = F.pad(value, (0, -extra))
    elif extra > 0:
        # Store queries by token, so that outputs are stored by token as well. Store keys by head, which is faster to read.
        query = F.pad(query.transpose(1, 2), (0, extra)).transpose(1, 2)
        key = F.pad(key, (0, extra))

    if spans is None:
        output, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling)
        return output[..., :width], None

    batch, heads, length, _ = query.shape
    output = value.new_zeros(batch, length, heads, value.shape[-1])
    for row, (first, end) in enumerate(spans):
        if first == end:
            continue
        span = (slice(row, row + 1), slice(None), slice(first, end))
        attended, _ = sdpa_attention_forward(module, query[span], key[span], value[span], None, scaling=scaling)
        output[row, first:end] = attended[0]
    return output[..., :width], None


def one_query_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Compute attention of a single query (N = 1) with two matrix products, which read the cache once without copying it.

    Same arguments as `wide_attention`. Returns [B, 1, H, width of values].
    """
    batch, num_kv_heads, _, head_dim = key.shape
    query = (query * scaling).reshape(batch, num_kv_heads, -1, head_dim)  # [B, L, H / L, R]
    scores = query @ key.mT
    if mask is not None:
        if mask.shape[1] != 1:
            mask = mask.reshape(scores.shape)
        if mask.is_floating_point():
            scores = scores + mask
        else:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).flatten(1, 2)[:, None]


def find_spans(attention_mask: Tensor) -> Spans | None:
    """Find each row's span of tokens in an attention mask [B, N], which is 0 on padding.

    Returns:
        Spans of the rows. None if there is no padding, or if a row has padding between tokens.
    """
    is_token = attention_mask.bool()
    if is_token.all():
        return None
    first = is_token.long().argmax(1)
    end = first + is_token.sum(1)
    index = torch.arange(is_token.shape[1], device=is_token.device)
    is_in_span = (index >= first[:, None]) & (index < end[:, None])
    if not torch.equal(is_in_span, is_token):
        return None
    return list(zip(first.tolist(), end.tolist(), strict=True))


def biased_mask(bias: Tensor, mask: Tensor | None, past: int, dtype: torch.dtype) -> Tensor:
    """Combine a bias and a mask into one tensor to add to the scores.

    Args:
        bias: [B or 1, H, N, K].
        mask: Mask made by transformers: bool, true where a key is visible, or a tensor to add. None for a causal mask.
        past: Number of keys before the first query's token.
        dtype: Precision of the scores.
    """
    if mask is None:
        is_hidden = bias.new_ones(bias.shape[2:], dtype=torch.bool).triu(past + 1)
    elif mask.dtype == torch.bool:
        is_hidden = ~mask
    else:
        is_hidden = mask < 0
    return bias.to(dtype).masked_fill(is_hidden, torch.finfo(dtype).min)
