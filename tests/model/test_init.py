"""Initial weights depend only on seed and parameter name."""

import pytest
import torch

from megatape.accounting.parameters import meta_model
from megatape.config import LoraConfig, ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.model.init import ROWS, initial_block, initial_weight
from megatape.nn.parameters import Uniform, parameter
from tests.helpers.models.small_models import SHAPE as BUILDER_SHAPE

SHAPE = (2 * ROWS + 37, 6)


def draw(
    rows: slice = slice(0, SHAPE[0]), columns: slice = slice(0, 6), name: str = "mlp.up.weight", seed: int = 1
) -> torch.Tensor:
    return initial_block(name, SHAPE, None, rows, columns, 0.02, seed)


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
    assert initial_block("norm.weight", (5,), 1.0, slice(1, 3), slice(0, 1), 0.02, 1).tolist() == [[1.0]] * 2


def test_adapters_start_as_those_of_peft() -> None:
    """One matrix is uniform within 1 / sqrt(in_features), whether drawn in parts or at once. The other matrix is zero."""
    lora = LoraConfig(rank=200, alpha=1.0, targets=("down",))
    model = meta_model(ModelConfig(**BUILDER_SHAPE | {"lora": lora}))
    name = "blocks.1.mlp.down.adapter."
    first, second = (initial_weight(name + matrix, model.get_parameter(name + matrix), 0.02, 1) for matrix in "ab")
    inputs = BUILDER_SHAPE["mlp_size"]
    assert first.shape == (200, inputs)
    assert first.abs().max() <= inputs**-0.5
    assert float(first.std()) == pytest.approx((3 * inputs) ** -0.5, rel=0.02)
    assert second.shape == (BUILDER_SHAPE["hidden_size"], 200)
    assert not second.any()
    part = initial_block(name + "a", (200, inputs), Uniform(inputs**-0.5), slice(0, 200), slice(5, 9), 0.02, 1)
    assert torch.equal(part, first[:, 5:9])


def initial_weights(encoding: str) -> dict[str, torch.Tensor]:
    config = ModelConfig(**BUILDER_SHAPE | {"encoding": encoding})
    return {name: initial_weight(name, parameter, 0.02, 1) for name, parameter in meta_model(config).named_parameters()}


@pytest.mark.parametrize("init", [None, Uniform(0.1), 1, 0.5])
def test_a_vector_is_a_matrix_of_one_column(init: float | Uniform | None) -> None:
    made = parameter((40,), SINGLE, init=init)
    drawn = initial_weight("scale", made, 0.02, 1)
    assert drawn.shape == (40,)
    assert drawn.dtype == torch.float32
    whole = initial_block("scale", (40, 1), init, slice(0, 40), slice(0, 1), 0.02, 1)
    assert torch.equal(drawn, whole[:, 0])
    assert (drawn.std() > 0) == (not isinstance(init, int | float))
    with pytest.raises(ValueError, match="one or two dimensions"):
        parameter((2, 3, 4), SINGLE)


def test_what_starts_as_a_constant() -> None:
    """Norms start as the identity, TAPE as rotary positions, FIRE as in its authors' code, and T5's tables like matrices."""
    tape = initial_weights("tape")
    assert tape["blocks.0.mlp_norm.weight"].tolist() == [1.0] * 32
    assert not tape["blocks.0.position.gain"].any()
    assert not tape["blocks.0.position.up"].any()
    assert float(tape["blocks.0.position.content"].std()) == pytest.approx(0.02, rel=0.2)
    fire = initial_weights("fire")
    for name, value in {"log_scale": 0.1, "threshold": 1.0, "inner_bias": 0.0, "outer_bias": 0.0}.items():
        assert fire[f"blocks.0.attention.bias.{name}"].unique().item() == pytest.approx(value)
    assert float(initial_weights("t5")["blocks.0.attention.bias.table"].std()) == pytest.approx(0.02, rel=0.2)
