"""KERPLE: initial weights and their bounds."""

import math

from megatape.config import ModelConfig
from megatape.model.build import build_model
from megatape.model.init import initial_weight
from megatape.nn.parameters import spec_of
from tests.helpers.models.small_models import SHAPE


def test_kerple_starts_between_its_bounds() -> None:
    config = ModelConfig(
        **SHAPE | {"encoding": "kerple_log", "num_layers": 1, "hidden_size": 512, "num_heads": 256, "head_dim": 2}
    )
    model = build_model(config)
    for name, maximum in (("slope", 2.0), ("rate", 1.0)):
        weight = model.get_parameter(f"blocks.0.attention.bias.{name}")
        values = initial_weight(name, weight, 0.02, 0)
        assert spec_of(weight).bounds == (0.01, math.inf)
        assert 0.01 <= values.min() < 0.05 * maximum
        assert 0.95 * maximum < values.max() <= maximum
