"""RoPE with convolved keys, without its convolution."""

import pytest

from tests.helpers.models.encoding_comparison import (
    assert_different_functions,
    assert_equal_functions,
    set_weights,
    shared_weights,
)

pytestmark = pytest.mark.numerics


def test_rope_conv_without_its_convolution_is_rope() -> None:
    model, rope = shared_weights("rope_conv", "rope")
    assert_different_functions(model, rope)
    set_weights(model, up=0.0)
    assert_equal_functions(model, rope)
