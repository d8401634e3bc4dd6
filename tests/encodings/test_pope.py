"""PoPE: initial phases and their bounds."""

import math

from torch import Tensor

from megatape.config import ModelConfig
from megatape.model.build import build_model
from megatape.model.init import initial_weight
from megatape.nn.parameters import spec_of
from tests.helpers.models.small_models import SHAPE, random_model


def test_every_step_clips_the_phases_of_pope() -> None:
    """The engine clips the master weight. Clipping in the forward pass would leave a phase at a bound without a gradient."""
    model = random_model(encoding="pope", num_layers=1)
    delta = model.get_parameter("blocks.0.attention.token_features.delta")
    assert spec_of(delta).bounds == (-2 * math.pi, 0.0)


def initial_phases(encoding: str) -> Tensor:
    name = "blocks.0.attention.token_features.delta"
    shape = SHAPE | {"num_layers": 1, "hidden_size": 256, "num_heads": 16, "num_kv_heads": 16}
    model = build_model(ModelConfig(**shape | {"encoding": encoding}))
    return initial_weight(name, model.get_parameter(name), 0.02, 0)


def test_phases_of_pope_start_at_zero() -> None:
    assert not initial_phases("pope").any()


def test_phases_of_pope_uniform_start_anywhere() -> None:
    phases = initial_phases("pope_uniform")
    assert -2 * math.pi < phases.min() < -6
    assert -0.3 < phases.max() < 0
    assert abs(phases.mean() + math.pi) < 0.6
