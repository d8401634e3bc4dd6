"""Encodings against their published definitions, one pair of tokens at a time in float64, with their gradients."""

import math

import pytest
import torch
from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs, probabilities
from megatape.registry import ENCODINGS
from tests.encodings.definitions import cope, fox, grape_ap, kerple_log, path, pope, repo, rope_conv, selective_rope
from tests.encodings.definitions.heads import LENGTH, layer_of, projected, weights_of
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close

pytestmark = pytest.mark.numerics


# Start of encodings' names -> function computing each head's scores [N, N], following the encoding's definition
DEFINITIONS = {
    "cope": cope.expected_scores,
    "fox": fox.expected_scores,
    "grape_ap": grape_ap.expected_scores,
    "kerple_log": kerple_log.expected_scores,
    "path": path.expected_scores,
    "pope": pope.expected_scores,
    "repo": repo.expected_scores,
    "rope_conv": rope_conv.expected_scores,
    "selective_rope": selective_rope.expected_scores,
}
DEFINED = [name for name in ENCODINGS if name.startswith(tuple(DEFINITIONS))]


def expected_probabilities(layer: LayerInputs, encoding: str) -> Tensor:
    """Return attention probabilities by the encoding's definition, [H, N, N]."""
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    (expected_scores,) = [definition for start, definition in DEFINITIONS.items() if encoding.startswith(start)]
    scores = torch.stack(expected_scores(layer, encoding))
    return scores.masked_fill(later, -math.inf).softmax(-1)


@pytest.mark.parametrize("encoding", DEFINED)
def test_attention_is_the_definition(encoding: str) -> None:
    layer = layer_of(encoding)
    expected = expected_probabilities(layer, encoding).detach()
    assert_close(probabilities(layer)[0].double(), expected, bounds.ATTENTION)


@pytest.mark.parametrize("encoding", DEFINED)
def test_gradients_are_those_of_the_definition(encoding: str) -> None:
    """Compares the gradient of each attention weight, after weighting and summing all outputs."""
    layer = layer_of(encoding)
    attention = layer.attention
    generator = torch.Generator().manual_seed(5)
    factors = torch.randn(LENGTH, 32, generator=generator, dtype=torch.float64)
    weights = weights_of(layer)

    output, _ = attention(layer.h, layer.positions)
    gradients = torch.autograd.grad((output[0] * factors).sum(), tuple(weights.values()))

    values = projected(layer, "value").transpose(0, 1).repeat_interleave(2, 0)  # [H, N, R]
    attended = expected_probabilities(layer, encoding) @ values
    expected_output = attended.transpose(0, 1).flatten(1) @ weights["output.weight"].T
    expected = torch.autograd.grad((expected_output * factors).sum(), tuple(weights.values()))

    for name, gradient, expected_gradient in zip(weights, gradients, expected, strict=True):
        assert_close(gradient, expected_gradient, bounds.ENCODING_GRADIENTS, what=name)
