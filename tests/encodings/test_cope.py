"""CoPE: an empty table, and NaN."""

import math

import pytest
import torch

from tests.helpers.models.encoding_comparison import assert_different_functions, assert_equal_functions, shared_weights
from tests.helpers.models.small_models import random_model

pytestmark = pytest.mark.numerics


def test_cope_with_a_zero_table_is_nope() -> None:
    model, nope = shared_weights("cope", "nope")
    assert_different_functions(model, nope)
    for block in model.blocks:
        block.attention.bias.embedding.data.zero_()
    assert_equal_functions(model, nope)


def test_nan_scores_stay_nan() -> None:
    """An index made from NaN would crash the process, and a GPU's context, before the run can report divergence."""
    model = random_model(encoding="cope", num_layers=1)
    model.embedding.weight.data[0] = math.nan
    assert model(torch.zeros(1, 5, dtype=torch.long), torch.arange(5)[None]).isnan().all()
