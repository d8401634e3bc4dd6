"""Attention over [v | e], split into several calls."""

import pytest
import torch
from torch import Tensor

from megatape.attention.split_values import MAX_VALUE_WIDTH
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import initial_state, moving, widths

pytestmark = pytest.mark.numerics


def test_wide_state_equals_blocks() -> None:
    """A state twice as wide as heads takes PyTorch's attention one call for v and two for e."""

    def outputs_and_gradients(backend: str) -> list[Tensor]:
        q, k, v, delta = widths(2, 24, 4, 2, MAX_VALUE_WIDTH, 2 * MAX_VALUE_WIDTH)
        content, attended_state = moving(backend, q, k, v, initial_state(delta), delta)
        loss = content.sin().sum() + attended_state.square().sum()
        return [content, attended_state, *torch.autograd.grad(loss, (q, k, v, delta))]

    for result, expected in zip(outputs_and_gradients("sdpa"), outputs_and_gradients("blocked"), strict=True):
        assert_close(result, expected, bounds.ATTENTION, floor=1e-3)
