"""Blocked attention and PyTorch's attention against the plain formula."""

import pytest
import torch

from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import SHAPES, initial_state, inputs, moving, plain, random_document_starts

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("backend", ["blocked", "sdpa"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backends_equal_the_formula(shape: tuple[int, ...], masked: bool, backend: str) -> None:
    """Values and all four gradients are compared with the formula in float64."""
    arguments = inputs(shape)
    exact_arguments = [tensor.detach().double().requires_grad_() for tensor in arguments]
    document_starts = torch.zeros(shape[:2], dtype=torch.long)
    mask = None
    if masked:
        document_starts = random_document_starts(*shape[:2])
        mask = document_starts

    q, k, v, delta = arguments
    initial = initial_state(delta)
    content, attended_state = moving(backend, q, k, v, initial, delta, mask)
    (content.sin().sum() + attended_state.square().sum()).backward()

    q, k, v, delta = exact_arguments
    expected_content, expected_state = plain(q, k, v, initial.double() + delta, document_starts)
    (expected_content.sin().sum() + expected_state.square().sum()).backward()
    assert_close(content, expected_content, bounds.ATTENTION, floor=1e-3)
    assert_close(attended_state, expected_state, bounds.ATTENTION, floor=1e-3)
    for argument, exact in zip(arguments, exact_arguments, strict=True):
        assert argument.grad is not None
        assert exact.grad is not None
        assert_close(argument.grad, exact.grad, bounds.ATTENTION, floor=1e-3)


def test_bfloat16_computes_in_float32() -> None:
    """With bfloat16 heads, the kernel rounds the float32 result once."""
    q, k, v, e = inputs(SHAPES[2], torch.bfloat16)
    e = e.detach().float()
    initial = initial_state(e)
    content, attended_state = moving("blocked", q, k, v, initial, e)
    assert content.dtype == attended_state.dtype == torch.bfloat16
    exact, _ = moving("blocked", q.float(), k.float(), v.float(), initial, e)
    assert torch.equal(content, exact.bfloat16())


def test_nothing_quadratic_is_kept() -> None:
    """Tensors saved for the backward pass grow with N, not with N x N."""
    from megatape.accounting.memory.saved_tensors import record_saved

    def num_saved_bytes(length: int) -> int:
        q, k, v, delta = inputs((1, length, 2, 2, 4))
        with record_saved(exclude=[]) as saved:
            moving("blocked", q, k, v, initial_state(delta), delta)
        return saved.bytes

    assert num_saved_bytes(512) == 2 * num_saved_bytes(256)
