"""Attention with a bias: its inputs, the plain formula, and a backend held to it."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.windows import visible
from megatape.encodings.fire import WIDTH, FireScores
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import random_document_starts


def inputs(shape: tuple[int, ...], kind: str) -> tuple[list[Tensor], Callable[[list[Tensor]], ScoreBias]]:
    """Return q, k, v and the bias's weights in float64, and the function making the bias from such weights."""
    batch, length, heads, channels, size = shape
    generator = torch.Generator().manual_seed(length)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64).requires_grad_()

    heads_of = [draw(batch, length, count, size) for count in (heads, channels, channels)]
    if kind == "distance":
        return [*heads_of, draw(heads, length)], lambda weights: DistanceBias(weights[0])
    rows = torch.arange(batch) * 7 if kind == "pairs of rows" else torch.zeros(1)
    positions = torch.arange(length) + rows[:, None]
    weights = [draw(WIDTH, 1), draw(WIDTH), draw(heads, WIDTH), draw(heads), draw(1), draw(1)]
    weights[5].data.mul_(0.01)  # A threshold after some tokens, leaving positions on both sides
    return [*heads_of, *weights], lambda weights: FireScores(positions.to(weights[0].dtype), *weights)


def plain(q: Tensor, k: Tensor, v: Tensor, numbers: Tensor, document_starts: Tensor) -> Tensor:
    """Attention with the bias `numbers` [B or 1, H, N, N], one head at a time."""
    group = q.shape[2] // k.shape[2]
    outputs = []
    for head in range(q.shape[2]):
        scores = q[:, :, head] @ k[:, :, head // group].mT / math.sqrt(q.shape[-1]) + numbers[:, head]
        outputs.append(scores.masked_fill(~visible(document_starts), -math.inf).softmax(-1) @ v[:, :, head // group])
    return torch.stack(outputs, 2)


def check(backend: str, shape: tuple[int, ...], kind: str, masked: bool) -> None:
    """Compare values and all gradients from the float32 kernel with the formula in float64.

    The floor is for the gradient of FIRE's output bias, which is zero in exact arithmetic."""
    exact, make = inputs(shape, kind)
    document_starts = random_document_starts(*shape[:2]) if masked else None
    length = shape[1]
    if kind == "distance":
        index = torch.arange(length)
        numbers = exact[3][:, (index[:, None] - index).clamp(min=0)][None]
    else:
        bias = make(exact[3:])
        numbers = bias.block(bias.weights, slice(0, length), slice(0, length))
    zeros = torch.zeros(shape[:2], dtype=torch.long)
    q, k, v, *_ = exact
    expected = plain(q, k, v, numbers, zeros if document_starts is None else document_starts)
    expected.sin().sum().backward()
    ours = [tensor.detach().float().requires_grad_() for tensor in exact]
    q, k, v, *weights = ours
    found, _ = get_backend(backend).attend(q, k, v, None, make(weights), document_starts, False)
    assert_close(found, expected, bounds.ATTENTION, floor=1.0)
    found.sin().sum().backward()
    for number, (tensor, reference) in enumerate(zip(ours, exact, strict=True)):
        assert tensor.grad is not None
        assert reference.grad is not None
        bound = bounds.ATTENTION if number < 3 else bounds.BIAS_GRADIENTS
        assert_close(tensor.grad, reference.grad, bound, floor=1.0, what=number)
