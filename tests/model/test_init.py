"""Initial weights depend on seed and name alone."""

import pytest
import torch

from megatape.model.init import ROWS, initial_slice

SHAPE = (2 * ROWS + 37, 6)
TOTAL = SHAPE[0] * SHAPE[1]


def draw(start: int = 0, stop: int = TOTAL, name: str = "blocks.0.mlp.up.weight", seed: int = 1) -> torch.Tensor:
    return initial_slice(name, SHAPE, start, stop, 0.02, seed)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_any_division_gives_the_same_whole(world_size: int) -> None:
    size = -(-TOTAL // world_size)
    pieces = [draw(start, min(start + size, TOTAL)) for start in range(0, TOTAL, size)]
    assert torch.equal(torch.cat(pieces), draw())


def test_seed_and_name_matter() -> None:
    assert not torch.equal(draw(seed=1), draw(seed=2))
    assert not torch.equal(draw(), draw(name="blocks.1.mlp.up.weight"))
    blocks = draw().view(SHAPE)[: 2 * ROWS].view(2, ROWS, -1)
    assert not torch.equal(blocks[0], blocks[1])


def test_distribution_and_special_weights() -> None:
    weights = draw()
    assert float(weights.mean().abs()) < 1e-3
    assert float(weights.std()) == pytest.approx(0.02, rel=0.05)
    assert initial_slice("blocks.0.mlp_norm.weight", (5,), 0, 5, 0.02, 1).tolist() == [1.0] * 5
    assert initial_slice("norm.weight", (5,), 1, 3, 0.02, 1).tolist() == [1.0] * 2
    assert initial_slice("blocks.0.position.gain", (4,), 0, 4, 0.02, 1).tolist() == [0.0] * 4
    assert initial_slice("blocks.0.position.up", (6, 4), 3, 9, 0.02, 1).tolist() == [0.0] * 6
