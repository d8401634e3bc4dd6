"""Dropout as a function of sample, layer, token and channel, instead of a random generator's state.

So the same elements are dropped by ranks holding some of the tokens or channels, in micro-batches of any size, and when the
backward pass recomputes the forward pass.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_WORD = 2**64
# Odd constants from the golden ratio and pi, the same as in data/training/mixing/order.py.
_GOLDEN = 0x9E3779B97F4A7C15
_PI = 0x243F6A8885A308D3


class Samples(NamedTuple):
    """Samples in the current forward pass.

    Attributes:
        seeds: Random number of each sample, [B], or None for no dropout.
        token_indices: Index within its sample of each of the n tokens on this replica, [1, n], or None for all tokens in order.
    """

    seeds: Tensor | None
    token_indices: Tensor | None = None


NO_DROPOUT = Samples(None)


def dropout(
    x: Tensor,
    probability: float,
    seeds: Tensor | None,
    layer: int,
    *,
    token_indices: Tensor | None = None,
    first_channel: int = 0,
) -> Tensor:
    """Set random elements of x to zero, and divide the others by 1 - probability.

    Args:
        x: Input, or this rank's tokens and channels of it, [B, n, c].
        probability: Probability of dropping an element.
        seeds: Random number of each sample, [B], or None for no dropout.
        layer: Random number of the layer.
        token_indices: Index of each token within its sample, [1, n], or None for 0 .. n - 1.
        first_channel: Index of x's first channel.
    """
    if seeds is None or not probability:
        return x
    tokens = token_indices
    if tokens is None:
        tokens = torch.arange(x.shape[1], device=x.device)
    channels = torch.arange(first_channel, first_channel + x.shape[2], device=x.device)
    rows = _mix(_mix(seeds + layer)[:, None] + tokens)
    # Uniform over all int64 numbers.
    bits = _mix(rows[:, :, None] + _mix(channels))
    threshold = _signed(round(probability * _WORD) - _WORD // 2)
    zeros = bits < threshold
    return x.masked_fill(zeros, 0.0) / (1 - probability)


def _mix(value: Tensor) -> Tensor:
    """Mix 64 bits as in data/training/mixing/order.py."""
    value = value * _signed(_GOLDEN)
    # Shifting a negative number fills in ones from the left. The mask clears them.
    value ^= (value >> 32) & 0xFFFFFFFF
    value *= _signed(_PI)
    value ^= (value >> 32) & 0xFFFFFFFF
    return value


def _signed(value: int) -> int:
    """Return the int64 with the same bits."""
    return (value + _WORD // 2) % _WORD - _WORD // 2
