"""Zeros of dropout: how many there are, and that parts of an input draw the zeros of the whole."""

import pytest
import torch

from megatape.nn.dropout import dropout

SEEDS = torch.tensor([17, 2**62 + 3, 18])
X = torch.ones(3, 200, 150)


@pytest.mark.parametrize("probability", [0.05, 0.5, 0.9])
def test_share_of_zeros(probability: float) -> None:
    """The share of zeros is within five standard deviations in total and by sample, token and channel.

    Neighbors are independent.
    """
    y = dropout(X, probability, SEEDS, layer=5)
    zeros = (y == 0).double()
    assert torch.equal(y, torch.where(y == 0, 0.0, torch.tensor(1.0) / (1 - probability)))
    deviation = (probability * (1 - probability)) ** 0.5
    for dims in ((0, 1, 2), (1, 2), (0, 2), (0, 1)):
        shares = zeros.mean(dims)
        num_averaged = zeros.numel() / shares.numel()
        assert (shares - probability).abs().max() < 5 * deviation / num_averaged**0.5
    centered = zeros - probability
    for dim in range(3):
        num_pairs = X.shape[dim] - 1
        products = centered.narrow(dim, 1, num_pairs) * centered.narrow(dim, 0, num_pairs)
        assert products.mean().abs() < 5 * deviation**2 / products.numel() ** 0.5, dim


def test_parts_draw_the_zeros_of_the_whole() -> None:
    expected = dropout(X, 0.3, SEEDS, layer=5)[1:, 50:120, 30:40]
    token_indices = torch.arange(50, 120)[None]
    part = dropout(X[1:, 50:120, 30:40], 0.3, SEEDS[1:], layer=5, token_indices=token_indices, first_channel=30)
    assert torch.equal(part, expected)


def test_each_layer_draws_its_own_zeros() -> None:
    assert not torch.equal(dropout(X, 0.3, SEEDS, layer=6), dropout(X, 0.3, SEEDS, layer=5))


def test_without_seeds_nothing_is_dropped() -> None:
    assert torch.equal(dropout(X, 0.3, None, layer=5), X)
