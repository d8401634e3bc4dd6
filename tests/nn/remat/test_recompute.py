"""Recomputation in the backward pass: its context, chunks of tokens, and arguments kept in host memory."""

import weakref
from contextvars import ContextVar

import torch
from torch import Tensor

from megatape.accounting.memory.saved_tensors import record_saved
from megatape.nn.remat.recompute import in_chunks, keep_on_host, recompute


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def test_recomputation_sees_the_context_of_the_forward_pass() -> None:
    """The backward pass may run in another context."""
    factor: ContextVar[float] = ContextVar("factor")
    x = draw(3)
    factor.set(3.0)
    out = recompute(lambda x: (x * factor.get()).square(), x)
    factor.set(5.0)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, 18 * x.detach())
    assert factor.get() == 5.0


def test_chunks_have_the_same_tokens_of_each_rank() -> None:
    """The second argument has the tokens of two ranks. Autograd only saves the arguments."""
    x = draw(2, 6, 3)
    both = draw(2, 12, 3)
    sizes: list[int] = []

    def function(x: Tensor, missing: None, both: Tensor) -> tuple[Tensor, None]:
        sizes.append(x.shape[1])
        first, second = both.chunk(2, dim=1)
        return x.exp() * first.sin() + second, None

    with record_saved(exclude=[x, both]) as saved:
        out, missing = in_chunks(function, 4, x, None, both)
    assert missing is None
    expected = torch.cat([function(x, None, both)[0]], dim=1)
    assert sizes == [4, 2, 6]
    assert torch.equal(out, expected)
    assert saved.bytes == both.nbytes  # Only copies with both ranks' tokens side by side are saved.
    gradients = torch.autograd.grad(out.square().sum(), [x, both])
    expected_gradients = torch.autograd.grad(expected.square().sum(), [x, both])
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert torch.equal(gradient, expected_gradient)


def test_streams_are_kept_on_the_host() -> None:
    """The chosen tensor is copied and its memory is free after the forward pass. Other tensors stay on their device."""
    leaf = draw(4)
    factor = draw(4)
    x = leaf * 1
    expected = (3 * leaf**2 * factor).detach()
    memory = weakref.ref(x.untyped_storage())
    factor_memory = weakref.ref(factor.untyped_storage())

    with keep_on_host(x, None):
        out = recompute(lambda x, factor: x**3 * factor, x, factor)
    del x

    assert memory() is None
    assert factor_memory() is not None
    (gradient,) = torch.autograd.grad(out.sum(), leaf)
    assert torch.equal(gradient, expected)
