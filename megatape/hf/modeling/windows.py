"""Attention within a window: a token attends to itself and to the W - 1 tokens before it.

Shapes: B batch, N new tokens, K keys (new and cached), H query heads, L key/value heads, R head size.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .attention import Spans, wide_attention

# Queries per call of attention. Each call computes the scores of their windows only.
NUM_ROWS = 256


class Window(NamedTuple):
    """Window of a layer, and the tokens that it applies to.

    Attributes:
        size: Number of tokens that a token attends to, W.
        rows: Index of each new token in its row of the batch, [N].
        first_key: Index of the first key in its row. Earlier tokens are no longer in the cache.
    """

    size: int
    rows: Tensor
    first_key: int

    def mask(self, num_keys: int, mask: Tensor | None) -> Tensor:
        """Return the attention mask of the layer.

        Args:
            num_keys: Number of keys K.
            mask: Mask of a layer without a window for all keys from the first token on, as transformers makes it: bool, true
                where a key is visible, or a tensor to add. None for a causal mask.

        Returns:
            Mask for the layer's K keys, bool or to add like `mask`, [B or 1, 1, N, K].
        """
        keys = torch.arange(num_keys, device=self.rows.device) + self.first_key
        rows = self.rows[:, None]
        is_visible = keys > rows - self.size
        if mask is None:
            return (is_visible & (keys <= rows))[None, None]
        mask = mask[..., self.first_key : self.first_key + num_keys]
        if mask.dtype == torch.bool:
            return mask & is_visible
        return mask.masked_fill(~is_visible, torch.finfo(mask.dtype).min)


def window_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    window: Window,
    spans: Spans | None,
) -> Tensor:
    """Compute attention within a window, in time and memory that grow with N W.

    Args:
        module: Attention layer.
        query: [B, H, N, R].
        key: [B, L, K, R]. The last ones are those of the new tokens.
        value: [B, L, K, any width].
        mask: Mask of a layer without a window, see Window.mask.
        scaling: Factor of the scores.
        window: Window of the layer.
        spans: Spans of the rows without padding, instead of a mask (attention.py).

    Returns:
        Outputs [B, N, H, width of values], which are zero outside of the spans.
    """
    if spans is None:
        return _by_rows(module, query, key, value, mask, scaling, window)
    batch, num_heads, length, _ = query.shape
    output = value.new_zeros(batch, length, num_heads, value.shape[-1])
    for row, (first, end) in enumerate(spans):
        if first == end:
            continue
        span = (slice(row, row + 1), slice(None), slice(first, end))
        within = Window(window.size, window.rows[first:end], window.first_key + first)
        output[row, first:end] = _by_rows(module, query[span], key[span], value[span], None, scaling, within)[0]
    return output


def _by_rows(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, window: Window
) -> Tensor:
    """Compute attention for NUM_ROWS queries at a time, see `window_attention`."""
    num_new = query.shape[2]
    num_cached = key.shape[2] - num_new
    outputs = []
    for start in range(0, num_new, NUM_ROWS):
        stop = min(start + NUM_ROWS, num_new)
        # The new tokens' keys follow the cached ones.
        first = max(num_cached + start - window.size + 1, 0)
        end = num_cached + stop
        rows = Window(window.size, window.rows[start:stop], window.first_key + first)
        rows_mask = None
        if mask is not None:
            rows_mask = mask[:, :, start:stop]
        row_mask = rows.mask(end - first, rows_mask)
        output, _ = wide_attention(
            module, query[:, :, start:stop], key[:, :, first:end], value[:, :, first:end], row_mask, scaling
        )
        outputs.append(output)
    return torch.cat(outputs, dim=1)
