"""Definition of PoPE: a score is a sum of products of lengths, each times the cosine of an angle."""

import torch
from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs
from tests.encodings.definitions.heads import Head, heads_of, weights_of


def pope_scores(head: Head, delta: Tensor) -> Tensor:
    """Return a head's scores with phases delta [R]."""
    frequencies = 10_000 ** (-torch.arange(head.size, dtype=delta.dtype) / head.size)
    scores = head.zeros()
    for i, j in head.pairs:
        lengths = (1 + head.q[i].exp()).log() * (1 + head.k[j].exp()).log()
        angles = (i - j) * frequencies - delta
        scores[i, j] = lengths @ angles.cos() / head.size**0.5
    return scores


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    delta = weights_of(layer)["token_features.delta"]
    return [pope_scores(head, delta[head.channel]) for head in heads_of(layer)]
