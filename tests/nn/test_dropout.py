"""Zeros of dropout: how many there are, and that parts of an input draw the zeros of the whole."""

import pytest
import torch

from megatape.nn.dropout import dropout

SEEDS = torch.tensor([17, 2**62 + 3, 18])
X = torch.ones(3, 200, 150)


@pytest.mark.parametrize("probability", [0.05, 0.5, 0.9])
def test_share_of_zeros(probability: float) -> None:
    """The share of zeros is within five standard deviations in total and by sample, token and channel. Neighbors are
    independent.
    """
    y = dropout(X, probability, SEEDS, layer=5)
    zeros = (y == 0).double()
    assert torch.equal(y, torch.where(y == 0, 0.0, torch.tensor(1.0) / (1 - probability)))
    deviation = (probability * (1 - probability)) ** 0.5
    for dims in ((0, 1, 2), (1, 2), (0, 2), (0, 1)):
        shares = zeros.mean(dims)
        assert (shares - probability).abs().max() < 5 * deviation * (shares.numel() / zeros.numel()) ** 0.5
    centered = zeros - probability
    for dim in range(3):
        products = centered.narrow(dim, 1, X.shape[dim] - 1) * centered.narrow(dim, 0, X.shape[dim] - 1)
        assert products.mean().abs() < 5 * deviation**2 / products.numel() ** 0.5, dim


def test_parts_draw_the_zeros_of_the_whole() -> None:
    whole = dropout(X, 0.3, SEEDS, layer=5)
    part = dropout(X[1:, 50:120, 30:40], 0.3, SEEDS[1:], layer=5, token_indices=torch.arange(50, 120)[None], first_channel=30)
    assert torch.equal(part, whole[1:, 50:120, 30:40])
    assert not torch.equal(dropout(X, 0.3, SEEDS, layer=6), whole)
    assert torch.equal(dropout(X, 0.3, None, layer=5), X)
