"""Definition of Selective RoPE: phases are sums of steps computed from the content."""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs
from tests.encodings.definitions.heads import LENGTH, convolve, heads_of, rotated_scores, weights_of


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    weights = weights_of(layer)
    slices = layer.h[0].chunk(2, dim=-1)
    u = torch.cat([part / part.norm(dim=-1, keepdim=True) for part in slices], dim=-1)
    z = u @ weights["token_features.down"].T @ weights["token_features.up"].T
    steps = convolve(z, weights["sequence_features.weight"])
    if not encoding.startswith("selective_rope_linear"):
        steps = F.silu(steps)
    constant = weights.get("sequence_features.constant")
    assert (constant is not None) == (encoding in ("selective_rope_constant", "selective_rope_gated"))
    if constant is not None:
        steps = steps + constant.exp()
    gates = torch.ones(LENGTH, 2, dtype=torch.float64)
    if encoding == "selective_rope_gated":
        gates = torch.sigmoid(F.linear(u, weights["token_features.gate.weight"], weights["token_features.gate.bias"]))
    expected = []
    for head in heads_of(layer):
        gated_steps = gates[:, head.channel, None] * steps[:, head.channel_slice(4)]
        expected.append(rotated_scores(head, gated_steps.cumsum(0), 500_000))
    return expected
