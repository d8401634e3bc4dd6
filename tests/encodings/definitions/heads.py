"""Inputs of an encoding's definition: queries, keys and weights of a layer, and what several definitions compute with them."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs, run
from tests.helpers.models.small_models import random_model, tokens_and_positions

LENGTH = 12


class Head(NamedTuple):
    """One head in a layer.

    Attributes:
        q: Queries, [N, R].
        k: Keys, [N, R].
        number: Index of the head.
        channel: Index of its key/value head.
    """

    q: Tensor
    k: Tensor
    number: int
    channel: int

    @property
    def num_tokens(self) -> int:
        return len(self.q)

    @property
    def size(self) -> int:
        return self.q.shape[1]

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        """Visible pairs: a query i and a key j."""
        for i in range(self.num_tokens):
            for j in range(i + 1):
                yield i, j

    def products(self) -> Tensor:
        """Return q k / sqrt R for all pairs, [N, N]."""
        return self.q @ self.k.T / self.size**0.5

    def zeros(self) -> Tensor:
        return torch.zeros(self.num_tokens, self.num_tokens, dtype=self.q.dtype)

    def planes(self, x: Tensor) -> Tensor:
        """Return queries or keys [N, R] as complex numbers, one per plane, [N, R/2]."""
        return torch.complex(*x.chunk(2, dim=-1))

    def channel_slice(self, size: int) -> slice:
        """Return where this head's key/value head is in a tensor holding `size` elements per key/value head."""
        return slice(size * self.channel, size * (self.channel + 1))


def layer_of(encoding: str) -> LayerInputs:
    """Return the only layer in a random float64 model with grouped queries, and its inputs."""
    model = random_model(encoding=encoding, num_layers=1, num_kv_heads=2, std=0.6).double()
    _, (layer,) = run(model, *tokens_and_positions(batch=1, length=LENGTH))
    return layer


def projected(layer: LayerInputs, name: str) -> Tensor:
    """Return queries, keys or values [N, heads, R], projecting by the weight with this name."""
    weight = weights_of(layer)[f"{name}.weight"]
    return (layer.h[0] @ weight.T).unflatten(-1, (-1, 8))


def heads_of(layer: LayerInputs) -> list[Head]:
    q = projected(layer, "query")
    k = projected(layer, "key")
    heads = []
    for index in range(4):
        channel = index // 2
        heads.append(Head(q[:, index], k[:, channel], index, channel))
    return heads


def decay(head: Head, log_gates: Tensor) -> Tensor:
    """Return log_gates [N] summed between each key and query, excluding the key's own gate."""
    sums = head.zeros()
    for i, j in head.pairs:
        sums[i, j] = log_gates[j + 1 : i + 1].sum()
    return sums


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve x [N, C] causally with weight [C, number of tokens], whose last column is for the current token."""
    result = torch.zeros_like(x)
    last = weight.shape[1] - 1
    for i in range(len(x)):
        for back in range(min(i, last) + 1):
            result[i] += weight[:, last - back] * x[i - back]
    return result


def rotated_scores(head: Head, phases: Tensor, base: float) -> Tensor:
    """Return a head's scores, rotating queries and keys by phases [N, R/2 or 1] times RoPE's frequencies for a base."""
    num_planes = head.size // 2
    phases = phases.expand(-1, num_planes)
    frequencies = base ** (-2 * torch.arange(num_planes, dtype=phases.dtype) / head.size)
    queries = head.planes(head.q)
    keys = head.planes(head.k)
    scores = head.zeros()
    for i, j in head.pairs:
        angles = (phases[i] - phases[j]) * frequencies
        rotations = torch.complex(angles.cos(), angles.sin())
        products = (queries[i] * keys[j].conj() * rotations).real
        scores[i, j] = products.sum() / head.size**0.5
    return scores


def weights_of(layer: LayerInputs) -> dict[str, Tensor]:
    return dict(layer.attention.named_parameters())
