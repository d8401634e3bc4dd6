"""RePo with equal positions."""

import pytest

from tests.helpers.models.encoding_comparison import (
    assert_different_functions,
    assert_equal_functions,
    set_weights,
    shared_weights,
)

pytestmark = pytest.mark.numerics


def test_repo_with_equal_positions_is_nope() -> None:
    model, nope = shared_weights("repo", "nope")
    assert_different_functions(model, nope)
    set_weights(model, up=0.0)
    assert_equal_functions(model, nope)
