"""FoX: special cases of its gates, and exact decay after many tokens."""

import pytest
import torch

from megatape.encodings.fox import Decay
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.encoding_comparison import assert_equal_functions, set_equal_gates, set_weights, shared_weights

pytestmark = pytest.mark.numerics


def test_fox_with_open_gates_is_nope() -> None:
    model, nope = shared_weights("fox", "nope")
    set_weights(model, gate_weight=0.0, gate_bias=800.0)
    assert_equal_functions(model, nope)


def test_fox_with_equal_gates_is_alibi() -> None:
    model, alibi = shared_weights("fox", "alibi")
    set_equal_gates(model, 2.0 ** (-8 / 4 * torch.arange(1, 5, dtype=torch.float64)))
    assert_equal_functions(model, alibi)


def test_decay_after_many_tokens_is_as_exact_as_at_first() -> None:
    """c falls to -11,000. Rounding it to float32 would lose differences as small as 1e-4."""
    gates = torch.full((1, 16_384, 1, 1), -0.7, dtype=torch.float64)
    decay = Decay(gates.cumsum(1))
    first_tokens = slice(0, 8)
    last_tokens = slice(16_376, 16_384)
    near = decay.block(decay.weights, first_tokens, first_tokens)
    far = decay.block(decay.weights, last_tokens, last_tokens)
    assert_close(far, near, bounds.DEFINITION)
