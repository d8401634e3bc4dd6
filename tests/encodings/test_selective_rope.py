"""Selective RoPE: special cases of its steps, and supported sizes."""

import pytest
import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.encodings.selective_rope import SelectiveRope
from tests.helpers.models.encoding_comparison import (
    assert_different_functions,
    assert_equal_functions,
    set_weights,
    shared_weights,
)
from tests.helpers.models.small_models import SHAPE

pytestmark = pytest.mark.numerics


def test_selective_rope_with_equal_steps_is_rope(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rope = shared_weights("selective_rope", "rope", rotary_base=500_000.0)
    assert_different_functions(model, rope)
    rotate = SelectiveRope.rotate_qk

    def constant(self: SelectiveRope, q: Tensor, k: Tensor, state: None, features: tuple[Tensor]) -> tuple[Tensor, Tensor]:
        return rotate(self, q, k, state, (torch.ones_like(features[0]).cumsum(1),))

    monkeypatch.setattr(SelectiveRope, "rotate_qk", constant)
    assert_equal_functions(model, rope)


def test_selective_rope_with_open_gates_and_no_content_is_rope() -> None:
    """The weights alone make it RoPE: the constant step is exp 0."""
    model, rope = shared_weights("selective_rope_gated", "rope", rotary_base=500_000.0)
    assert_different_functions(model, rope)
    set_weights(model, up=0.0, constant=0.0, gate_weight=0.0, gate_bias=800.0)
    assert_equal_functions(model, rope)


def test_selective_rope_needs_a_multiple_of_the_heads() -> None:
    with pytest.raises(ValueError, match="hidden_size 30 is not a multiple of num_kv_heads 4: encoding selective_rope"):
        ModelConfig(**SHAPE | {"encoding": "selective_rope", "hidden_size": 30, "head_dim": 8})
