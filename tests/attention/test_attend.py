"""Blocked attention and PyTorch's attention against the plain formula."""

import pytest
import torch
from torch import Tensor

from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import SHAPES, initial_state, inputs, moving, plain, random_document_starts

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_equal_the_formula(shape: tuple[int, ...], masked: bool) -> None:
    """Values and all four gradients are compared with the formula in float64."""
    arguments = inputs(shape)
    document_starts = random_document_starts(*shape[:2]) if masked else None
    exact = [tensor.detach().double().requires_grad_() for tensor in arguments]
    zeros = torch.zeros(shape[:2], dtype=torch.long)
    q, k, v, delta = exact
    initial = initial_state(delta)
    expected = plain(q, k, v, initial.double() + delta, document_starts if document_starts is not None else zeros)
    (expected[0].sin().sum() + expected[1].square().sum()).backward()
    for backend in ("blocked", "sdpa"):
        for tensor in arguments:
            tensor.grad = None
        q, k, v, delta = arguments
        content, attended_state = moving(backend, q, k, v, initial, delta, document_starts)
        (content.sin().sum() + attended_state.square().sum()).backward()
        pairs: list[tuple[Tensor | None, Tensor | None]] = [(content, expected[0]), (attended_state, expected[1])]
        pairs += [(tensor.grad, reference.grad) for tensor, reference in zip(arguments, exact, strict=True)]
        for ours, theirs in pairs:
            assert ours is not None
            assert theirs is not None
            assert_close(ours, theirs, bounds.ATTENTION, floor=1e-3)


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
    from megatape.accounting.saved_tensors import record_saved

    sizes = []
    for length in (256, 512):
        arguments = inputs((1, length, 2, 2, 4))
        with record_saved(exclude=[]) as saved:
            q, k, v, delta = arguments
            moving("blocked", q, k, v, initial_state(delta), delta)
        sizes.append(saved.bytes)
    assert sizes[1] == 2 * sizes[0]
