"""PaTH and PaTH-FoX: tokens between key and query reflect the key, with gates letting it decay in PaTH-FoX."""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs
from tests.encodings.definitions.heads import Head, convolve, decay, heads_of, weights_of


def path_scores(head: Head, w: Tensor, beta: Tensor) -> Tensor:
    """Return a head's scores, reflecting along directions w [N, R] with strengths beta [N]."""
    scores = head.zeros()
    for j in range(head.num_tokens):
        key = head.k[j]
        for i in range(j, head.num_tokens):
            if i > j:
                key = key - beta[i] * w[i] * (w[i] @ key)
            scores[i, j] = head.q[i] @ key / head.size**0.5
    return scores


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    weights = weights_of(layer)
    h = layer.h[0]
    gated = encoding.startswith("path_fox")
    prefix = "token_features."
    convolution = "sequence_features.weight"
    if gated:
        prefix = "token_features.reflections."
        convolution = "sequence_features.directions.weight"
    convolved = convolve(h @ weights[f"{prefix}down"].T @ weights[f"{prefix}up"].T, weights[convolution])
    directions = F.silu(convolved)
    beta = 2 * torch.sigmoid(F.linear(h, weights[f"{prefix}strength.weight"], weights[f"{prefix}strength.bias"]))
    expected = []
    for head in heads_of(layer):
        w = directions[:, head.channel_slice(8)]
        scores = path_scores(head, w / w.norm(dim=-1, keepdim=True), beta[:, head.channel])
        if gated:
            gates = F.linear(h, weights["token_features.gates.gate.weight"], weights["token_features.gates.gate.bias"])
            log_gates = F.logsigmoid(gates[:, head.number])
            if encoding.endswith("_scaled"):
                log_gates = log_gates * 8**-0.5
            scores += decay(head, log_gates)
        expected.append(scores)
    return expected
