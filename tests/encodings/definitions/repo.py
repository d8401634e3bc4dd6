"""RePo: RoPE at positions computed from content."""

import torch
from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs
from tests.encodings.definitions.heads import heads_of, rotated_scores, weights_of


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    weights = weights_of(layer)
    h = layer.h[0]
    gate = h @ weights["token_features.gate"].T
    inner = gate * torch.sigmoid(gate) * (h @ weights["token_features.content"].T)
    positions = inner @ weights["token_features.up"].T
    return [rotated_scores(head, positions[:, head.channel, None], 10_000) for head in heads_of(layer)]
