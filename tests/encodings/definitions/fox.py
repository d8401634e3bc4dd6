"""FoX: scores decay by the gates between key and query."""

import torch.nn.functional as F
from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs
from tests.encodings.definitions.heads import decay, heads_of, weights_of


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    weights = weights_of(layer)
    gates = F.linear(layer.h[0], weights["token_features.gate.weight"], weights["token_features.gate.bias"])
    return [head.products() + decay(head, F.logsigmoid(gates[:, head.number])) for head in heads_of(layer)]
