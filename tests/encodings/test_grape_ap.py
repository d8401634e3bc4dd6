"""GRAPE-AP without features."""

import math

import pytest
import torch

from tests.helpers.models.encoding_comparison import (
    assert_different_functions,
    assert_equal_functions,
    set_equal_gates,
    set_weights,
    shared_weights,
)
from tests.helpers.models.small_models import random_model

pytestmark = pytest.mark.numerics


def test_grape_ap_without_features_is_alibi() -> None:
    """Without features, the potential of each step is slope · log(1/2), so the slopes are those of ALiBi times log 2."""
    model, nope = shared_weights("grape_ap", "nope")
    assert_different_functions(model, nope)
    set_weights(model, projection_weight=0.0)
    fox_as_alibi = random_model(encoding="fox")
    fox_as_alibi.load_state_dict(nope.state_dict(), strict=False)
    set_equal_gates(fox_as_alibi, 2.0 ** (-8 / 4 * torch.arange(1, 5, dtype=torch.float64)) * math.log(2))
    assert_equal_functions(model, fox_as_alibi)
