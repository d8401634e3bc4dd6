"""Initial weights depend on seed and name alone."""

import pytest
import torch

from megatape.model.init import ROWS, initial_block, initial_weight

SHAPE = (2 * ROWS + 37, 6)


def draw(
    rows: slice = slice(0, SHAPE[0]), columns: slice = slice(0, 6), name: str = "mlp.up.weight", seed: int = 1
) -> torch.Tensor:
    return initial_block(name, SHAPE, rows, columns, 0.02, seed)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_any_division_gives_the_same_whole(world_size: int) -> None:
    size = -(-SHAPE[0] // world_size)
    pieces = [draw(slice(start, min(start + size, SHAPE[0]))) for start in range(0, SHAPE[0], size)]
    assert torch.equal(torch.cat(pieces), draw())
    halves = [draw(columns=slice(start, start + 3)) for start in (0, 3)]
    assert torch.equal(torch.cat(halves, dim=1), draw())


def test_seed_and_name_matter() -> None:
    assert not torch.equal(draw(seed=1), draw(seed=2))
    assert not torch.equal(draw(), draw(name="mlp.down.weight"))
    blocks = draw()[: 2 * ROWS].view(2, ROWS, -1)
    assert not torch.equal(blocks[0], blocks[1])


def test_distribution_and_special_weights() -> None:
    weights = draw()
    assert float(weights.mean().abs()) < 1e-3
    assert float(weights.std()) == pytest.approx(0.02, rel=0.05)
    assert initial_weight("blocks.0.mlp_norm.weight", (5,), 0.02, 1).tolist() == [1.0] * 5
    assert initial_block("norm.weight", (5,), slice(1, 3), slice(0, 1), 0.02, 1).tolist() == [[1.0]] * 2
    assert initial_weight("blocks.0.position.gain", (4,), 0.02, 1).tolist() == [0.0] * 4
    assert initial_weight("blocks.0.position.up", (2, 3), 0.02, 1).tolist() == [[0.0] * 3] * 2
    for name, value in {"log_scale": 0.1, "threshold": 1.0, "inner_bias": 0.0, "outer_bias": 0.0}.items():
        assert initial_weight(f"blocks.0.attention.bias.{name}", (1,), 0.02, 1).item() == pytest.approx(value)
    assert float(initial_weight("blocks.0.attention.bias.table", (64, 32), 0.02, 1).std()) == pytest.approx(0.02, rel=0.05)
