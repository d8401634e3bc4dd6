"""Initial weights depend only on seed and parameter name."""

import pytest
import torch

from megatape.config import LoraConfig, ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.model.build import meta_model
from megatape.model.init import ROWS, initial_block, initial_weight
from megatape.nn.parameters import Uniform, parameter
from tests.helpers.models.small_models import SHAPE as BUILDER_SHAPE

SHAPE = (2 * ROWS + 37, 6)


def draw(
    rows: slice = slice(0, SHAPE[0]), columns: slice = slice(0, SHAPE[1]), name: str = "mlp.up.weight", seed: int = 1
) -> torch.Tensor:
    return initial_block(name, SHAPE, None, rows, columns, 0.02, seed)


def standard_deviation(weight: torch.Tensor) -> float:
    return float(weight.std())


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_shards_of_rows_are_parts_of_the_whole(num_ranks: int) -> None:
    num_rows = -(-SHAPE[0] // num_ranks)
    shards = [draw(rows=slice(start, min(start + num_rows, SHAPE[0]))) for start in range(0, SHAPE[0], num_rows)]
    assert torch.equal(torch.cat(shards), draw())


def test_shards_of_columns_are_parts_of_the_whole() -> None:
    halves = [draw(columns=slice(0, 3)), draw(columns=slice(3, 6))]
    assert torch.equal(torch.cat(halves, dim=1), draw())


def test_seed_and_name_matter() -> None:
    assert not torch.equal(draw(seed=1), draw(seed=2))
    assert not torch.equal(draw(), draw(name="mlp.down.weight"))
    blocks = draw()[: 2 * ROWS].view(2, ROWS, -1)
    assert not torch.equal(blocks[0], blocks[1])


def test_weights_are_distributed_around_zero() -> None:
    weights = draw()
    assert float(weights.mean().abs()) < 1e-3
    assert standard_deviation(weights) == pytest.approx(0.02, rel=0.05)


def test_norms_are_ones() -> None:
    block = initial_block("norm.weight", (5,), 1.0, slice(1, 3), slice(0, 1), 0.02, 1)
    assert block.tolist() == [[1.0], [1.0]]


def test_adapters_start_as_those_of_peft() -> None:
    """One matrix is uniform within 1 / sqrt(in_features), whether drawn in parts or at once. The other matrix is zero."""
    lora = LoraConfig(rank=200, alpha=1.0, targets=("down",))
    model = meta_model(ModelConfig(**BUILDER_SHAPE | {"lora": lora}))
    name = "blocks.1.mlp.down.adapter."
    a = initial_weight(f"{name}a", model.get_parameter(f"{name}a"), 0.02, 1)
    b = initial_weight(f"{name}b", model.get_parameter(f"{name}b"), 0.02, 1)
    in_features = BUILDER_SHAPE["mlp_size"]
    assert a.shape == (200, in_features)
    assert a.abs().max() <= in_features**-0.5
    assert standard_deviation(a) == pytest.approx((3 * in_features) ** -0.5, rel=0.02)
    assert b.shape == (BUILDER_SHAPE["hidden_size"], 200)
    assert not b.any()
    uniform = Uniform(in_features**-0.5)
    part = initial_block(f"{name}a", (200, in_features), uniform, slice(0, 200), slice(5, 9), 0.02, 1)
    assert torch.equal(part, a[:, 5:9])


def initial_weights(encoding: str) -> dict[str, torch.Tensor]:
    config = ModelConfig(**BUILDER_SHAPE | {"encoding": encoding})
    return {name: initial_weight(name, parameter, 0.02, 1) for name, parameter in meta_model(config).named_parameters()}


@pytest.mark.parametrize("init", [None, Uniform(0.1), 1, 0.5])
def test_a_vector_is_a_matrix_of_one_column(init: float | Uniform | None) -> None:
    vector = initial_weight("scale", parameter((40,), SINGLE, init=init), 0.02, 1)
    matrix = initial_block("scale", (40, 1), init, slice(0, 40), slice(0, 1), 0.02, 1)
    assert vector.shape == (40,)
    assert vector.dtype == torch.float32
    assert torch.equal(vector, matrix[:, 0])
    is_constant = isinstance(init, int | float)
    assert (standard_deviation(vector) == 0) == is_constant


def test_parameters_have_one_or_two_dimensions() -> None:
    with pytest.raises(ValueError, match="one or two dimensions"):
        parameter((2, 3, 4), SINGLE)


def test_tape_starts_as_rotary_positions() -> None:
    weights = initial_weights("tape")
    assert weights["blocks.0.mlp_norm.weight"].tolist() == [1.0] * 32
    assert not weights["blocks.0.position.gain"].any()
    assert not weights["blocks.0.position.up"].any()
    assert standard_deviation(weights["blocks.0.position.content"]) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize(("name", "value"), [("log_scale", 0.1), ("threshold", 1.0), ("inner_bias", 0.0), ("outer_bias", 0.0)])
def test_fire_starts_as_in_its_authors_code(name: str, value: float) -> None:
    weight = initial_weights("fire")[f"blocks.0.attention.bias.{name}"]
    assert weight.unique().item() == pytest.approx(value)


def test_tables_of_t5_start_like_matrices() -> None:
    table = initial_weights("t5")["blocks.0.attention.bias.table"]
    assert standard_deviation(table) == pytest.approx(0.02, rel=0.2)
