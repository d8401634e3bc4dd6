"""State of random number generators."""

import torch

from megatape.checkpoint.format.rng import restore_rng, rng_snapshot


def test_generator_state_comes_back() -> None:
    snapshot = rng_snapshot()
    drawn = torch.rand(4)
    assert not torch.equal(torch.rand(4), drawn)
    restore_rng(snapshot)
    assert torch.equal(torch.rand(4), drawn)
