"""Dropout whose zeros are a function of the sample, the layer, the token and the channel.

No generator is involved. So ranks that hold some of the tokens or channels, micro-batches of any size, and a forward pass
that is computed again draw the same zeros.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor


class Samples(NamedTuple):
    """The samples of the forward pass in progress.

    Attributes:
        seeds: [B], a random number of each; None: no dropout.
        places: [1, n], the place in each of the n tokens that tensor-parallel ranks share; None: of all of them, in order.
    """

    seeds: Tensor | None
    places: Tensor | None = None


_NO_DROPOUT = Samples(None)
samples: ContextVar[Samples] = ContextVar("samples", default=_NO_DROPOUT)

_WORD = 2**64
# Odd constants from the golden ratio and from pi, as in data/training/order.py.
_GOLDEN = 0x9E3779B97F4A7C15
_PI = 0x243F6A8885A308D3


@contextmanager
def dropout_seeds(seeds: Tensor | None, places: Tensor | None = None) -> Iterator[None]:
    """Let adapters inside the block, and where the backward pass recomputes it, draw their dropout from these Samples."""
    token = samples.set(Samples(seeds, places))
    try:
        yield
    finally:
        samples.reset(token)


def dropout(
    x: Tensor, probability: float, seeds: Tensor | None, layer: int, *, places: Tensor | None = None, first_channel: int = 0
) -> Tensor:
    """Set elements of x to zero at random, and divide the others by 1 - probability.

    Args:
        x: [B, n, c], some tokens and channels of the whole.
        probability: Of a zero.
        seeds: [B], a random number of each sample; None: x as it is.
        layer: A random number of the layer.
        places: [1, n], the place of each token of x in its sample; None: in order from the first one.
        first_channel: The first channel of x.
    """
    if seeds is None or not probability:
        return x
    tokens = torch.arange(x.shape[1], device=x.device) if places is None else places
    channels = torch.arange(first_channel, first_channel + x.shape[2], device=x.device)
    rows = _mix(_mix(seeds + layer)[:, None] + tokens)
    bits = _mix(rows[:, :, None] + _mix(channels))  # uniform over int64
    zeros = bits < _signed(round(probability * _WORD) - _WORD // 2)
    return x.masked_fill(zeros, 0.0) / (1 - probability)


def _mix(value: Tensor) -> Tensor:
    """Mixes 64 bits as data/training/order.py does; every bit of `value` changes half of the high bits of the result."""
    value = value * _signed(_GOLDEN)
    value ^= (value >> 32) & 0xFFFFFFFF  # the shift repeats the sign
    value *= _signed(_PI)
    value ^= (value >> 32) & 0xFFFFFFFF
    return value


def _signed(value: int) -> int:
    """The int64 with the same bits."""
    return (value + _WORD // 2) % _WORD - _WORD // 2
