"""Attention windows: a token only attends to itself and to the W - 1 tokens before it.

Backends that mask documents get windows in the same way: by the first token that each token sees. Shapes as in
model/transformer.py.
"""

import torch
from torch import Tensor

from megatape.attention.backend import DocumentStarts


def starts_in_window(q: Tensor, document_starts: DocumentStarts, window: int) -> Tensor:
    """Return the index of the first token that each token sees, in its document and its window, int64 [B, N].

    Args:
        q: Queries [B, N, H, R], for batch size, length and device.
        document_starts: Index of the first token in each token's document, [B, N], or None.
        window: Number of tokens that a token attends to, W.
    """
    batch_size, length = q.shape[:2]
    window_starts = (torch.arange(length, device=q.device) - window + 1).clamp(min=0)
    if document_starts is None:
        return window_starts.expand(batch_size, length)
    return torch.maximum(document_starts, window_starts)


def num_pairs_in_window(length: int, window: int | None) -> int:
    """Return the number of pairs of tokens whose distance is less than the window, in either direction.

    Full attention has N x N pairs, half of which are masked.

    Args:
        length: Number of tokens N.
        window: Number of tokens that a token attends to, or None for all earlier ones.
    """
    if window is None or window >= length:
        return length**2
    num_farther = length - window
    return length**2 - num_farther * (num_farther + 1)


def visible(starts: Tensor) -> Tensor:
    """Return whether a query (row) sees a key (column), [B, N, N]. No backend computes it: it has N x N elements.

    Args:
        starts: Index of the first token that each token sees, [B, N]. It sees no later ones than itself.
    """
    index = torch.arange(starts.shape[1], device=starts.device)
    not_later = index <= index[:, None]
    not_before_start = index >= starts[..., None]
    return not_later & not_before_start
