"""Definition of RoPE with a short convolution added to the keys."""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs
from tests.encodings.definitions.heads import LENGTH, convolve, heads_of, rotated_scores, weights_of


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    weights = weights_of(layer)
    z = layer.h[0] @ weights["token_features.down"].T @ weights["token_features.up"].T
    convolved = F.silu(convolve(z, weights["sequence_features.weight"]))
    positions = torch.arange(LENGTH, dtype=z.dtype)[:, None]
    expected = []
    for head in heads_of(layer):
        keys = head.k + convolved[:, head.channel_slice(8)]
        expected.append(rotated_scores(head._replace(k=keys), positions, 10_000))
    return expected
