"""Dropout whose zeros are a function of the sample, the layer, the token and the channel.

No generator is involved. So ranks holding some of the tokens or channels, micro-batches of any size, and a recomputed forward
pass draw the same zeros.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

_WORD = 2**64
# Odd constants from the golden ratio and from pi, as in data/training/order.py.
_GOLDEN = 0x9E3779B97F4A7C15
_PI = 0x243F6A8885A308D3


class Samples(NamedTuple):
    """The samples of the forward pass in progress.

    Attributes:
        seeds: Random number of each sample, [B]; None: no dropout.
        token_indices: Index in its sample of each of the n tokens that tensor-parallel ranks share, [1, n]; None: all tokens of
            the sample, in order.
    """

    seeds: Tensor | None
    token_indices: Tensor | None = None


_NO_DROPOUT = Samples(None)
samples: ContextVar[Samples] = ContextVar("samples", default=_NO_DROPOUT)


@contextmanager
def draw_dropout_from(seeds: Tensor | None, token_indices: Tensor | None = None) -> Iterator[None]:
    """Let adapters inside the block draw their dropout from these Samples, also when the backward pass recomputes it."""
    token = samples.set(Samples(seeds, token_indices))
    try:
        yield
    finally:
        samples.reset(token)


def dropout(
    x: Tensor,
    probability: float,
    seeds: Tensor | None,
    layer: int,
    *,
    token_indices: Tensor | None = None,
    first_channel: int = 0,
) -> Tensor:
    """Set elements of x to zero at random, and divide the others by 1 - probability.

    Args:
        x: Some tokens and channels of the whole, [B, n, c].
        probability: Probability of a zero.
        seeds: Random number of each sample, [B]; None: no dropout.
        layer: Random number of the layer.
        token_indices: Index of each token of x in its sample, [1, n]; None: in order from the first one.
        first_channel: Index of the first channel of x.
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
    """Mix 64 bits as data/training/order.py does. Every bit of `value` changes half of the high bits of the result."""
    value = value * _signed(_GOLDEN)
    # The mask undoes that the shift repeats the sign.
    value ^= (value >> 32) & 0xFFFFFFFF
    value *= _signed(_PI)
    value ^= (value >> 32) & 0xFFFFFFFF
    return value


def _signed(value: int) -> int:
    """Return the int64 with the same bits."""
    return (value + _WORD // 2) % _WORD - _WORD // 2
