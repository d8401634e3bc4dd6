"""GRAPE-AP: potentials computed from features, summed from key to query."""

import math

import torch
from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs
from tests.encodings.definitions.heads import Head, heads_of, weights_of


def grape_scores(head: Head, p: Tensor) -> Tensor:
    """Return a head's scores with features p [N, 8] and ALiBi's slope for 4 heads."""
    slope = 2.0 ** (-8 / 4 * (head.number + 1))
    steps = head.zeros()
    for i, l in head.pairs:
        rotation = torch.tensor([[math.cos(l), -math.sin(l)], [math.sin(l), math.cos(l)]], dtype=p.dtype)
        norm = p[l].square().mean().sqrt()
        for plane in range(4):
            pair = [plane, plane + 4]
            steps[i, l] += p[i, pair] @ rotation @ p[l, pair] / norm / 8
    potentials = slope * -(1 + (-steps).exp()).log()
    scores = head.products().clone()
    for i, j in head.pairs:
        scores[i, j] += potentials[i, j + 1 : i + 1].sum()
    return scores


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    p = layer.h[0] @ weights_of(layer)["token_features.projection.weight"].T
    return [grape_scores(head, p[:, 8 * head.number : 8 * head.number + 8]) for head in heads_of(layer)]
