"""The blocked kernel and PyTorch's attention against the plain formula."""

import math

import pytest
import torch
from torch import Tensor

from megatape.attention.blocked import BLOCK
from megatape.attention.operation import get_backend
from megatape.attention.rotation import PositionState
from megatape.attention.sdpa import visible
from megatape.attention.wide import WIDEST
from tests import bounds
from tests.bounds import assert_close

# B, N, H, L, R: lengths below, at and above a block's; groups; an odd number of planes
SHAPES = [
    (2, 40, 4, 4, 8),
    (1, BLOCK, 2, 1, 4),
    (2, 2 * BLOCK + 44, 6, 2, 10),
    (3, 1, 2, 2, 2),
    (2, 24, 4, 2, WIDEST),
]


def moving(
    backend: str, q: Tensor, k: Tensor, v: Tensor, initial: Tensor, delta: Tensor | None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A v and A e by a backend."""
    content, attended_positions = get_backend(backend).attend(q, k, v, PositionState(initial, delta), None, mask, True)
    assert attended_positions is not None
    return content, attended_positions


def inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    batch, length, heads, channels, size = shape
    return widths(batch, length, heads, channels, size, size, dtype)


def widths(
    batch: int, length: int, heads: int, channels: int, size: int, width: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """q, k, v with heads of `size` and what layers have added to e, of `width`."""
    generator = torch.Generator().manual_seed(length)
    return [
        torch.randn(batch, length, count, last, generator=generator).to(dtype).requires_grad_()
        for count, last in ((heads, size), (channels, size), (channels, size), (channels, width))
    ]


def random_document_starts(batch: int, length: int) -> Tensor:
    document_starts = torch.zeros(batch, length, dtype=torch.long)
    for row, step in zip(range(batch), (17, 150, 5), strict=False):
        document_starts[row] = torch.arange(length) // step * step
    return document_starts


def initial_state(e: Tensor) -> Tensor:
    """A part of e that is the same for all channels and takes no gradient: kernels get it apart from the rest."""
    return torch.randn(*e.shape[:2], 1, e.shape[3], generator=torch.Generator().manual_seed(0))


def plain(q: Tensor, k: Tensor, v: Tensor, e: Tensor, document_starts: Tensor) -> tuple[Tensor, Tensor]:
    """The formula of docs/model.md, one head at a time, with complex numbers."""
    size, group = q.shape[-1], q.shape[2] // k.shape[2]
    content, attended_positions = [], []
    for head in range(q.shape[2]):
        channel = head // group
        half = size // 2
        rotate_qk = torch.complex(e[:, :, channel, :half], e[:, :, channel, half:])
        query = torch.complex(q[:, :, head, :half], q[:, :, head, half:]) * rotate_qk
        key = torch.complex(k[:, :, channel, :half], k[:, :, channel, half:]) * rotate_qk
        scores = (query @ key.mH).real / math.sqrt(size)
        weights = scores.masked_fill(~visible(document_starts), -math.inf).softmax(-1)
        content.append(weights @ v[:, :, channel])
        attended_positions.append(weights @ e[:, :, channel])
    return torch.stack(content, 2), torch.stack(attended_positions, 2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_equal_the_formula(shape: tuple[int, ...], masked: bool) -> None:
    """Values and all four gradients, the formula in float64."""
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
        content, attended_positions = moving(backend, q, k, v, initial, delta, document_starts)
        (content.sin().sum() + attended_positions.square().sum()).backward()
        pairs: list[tuple[Tensor | None, Tensor | None]] = [(content, expected[0]), (attended_positions, expected[1])]
        pairs += [(tensor.grad, reference.grad) for tensor, reference in zip(arguments, exact, strict=True)]
        for ours, theirs in pairs:
            assert ours is not None and theirs is not None
            assert_close(ours, theirs, bounds.ATTENTION, floor=1e-3)


def test_wide_state_equals_blocks() -> None:
    """A state twice as wide as heads, which takes PyTorch's attention one call for v and two for e."""
    results = []
    for backend in ("sdpa", "blocked"):
        q, k, v, delta = widths(2, 24, 4, 2, WIDEST, 2 * WIDEST)
        content, attended_positions = moving(backend, q, k, v, initial_state(delta), delta)
        loss = content.sin().sum() + attended_positions.square().sum()
        results.append([content, attended_positions, *torch.autograd.grad(loss, (q, k, v, delta))])
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected, bounds.ATTENTION, floor=1e-3)


def test_bfloat16_computes_in_float32() -> None:
    """For bfloat16 heads the kernel's result is the float32 result, rounded once."""
    q, k, v, e = inputs(SHAPES[2], torch.bfloat16)
    e = e.detach().float()
    initial = initial_state(e)
    content, attended_positions = moving("blocked", q, k, v, initial, e)
    assert content.dtype == attended_positions.dtype == torch.bfloat16
    exact, _ = moving("blocked", q.float(), k.float(), v.float(), initial, e)
    assert torch.equal(content, exact.bfloat16())


def test_nothing_quadratic_is_kept() -> None:
    """What is saved for the backward pass grows with N, not with N x N."""
    from megatape.model.accounting import record_saved

    sizes = []
    for length in (256, 512):
        arguments = inputs((1, length, 2, 2, 4))
        with record_saved(exclude=[]) as saved:
            q, k, v, delta = arguments
            moving("blocked", q, k, v, initial_state(delta), delta)
        sizes.append(saved.bytes)
    assert sizes[1] == 2 * sizes[0]
