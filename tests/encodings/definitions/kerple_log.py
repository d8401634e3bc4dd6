"""KERPLE's logarithmic bias by distance."""

from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs
from tests.encodings.definitions.heads import heads_of, weights_of


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    weights = weights_of(layer)
    expected = []
    for head in heads_of(layer):
        slope = weights["bias.slope"][head.number].abs()
        rate = weights["bias.rate"][head.number].abs()
        scores = head.products().clone()
        for i, j in head.pairs:
            scores[i, j] -= slope * (1 + rate * (i - j)).log()
        expected.append(scores)
    return expected
