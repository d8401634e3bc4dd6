"""What a tensor is rebuilt from: it is found through wrappers, and only where it is true; and what recomputation sees."""

import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from megatape.accounting.saved import record_saved
from megatape.nn.remat import (
    add,
    in_chunks,
    keep_on_host,
    linear,
    linear_and_input,
    rebuild_output,
    recompute,
    remat,
    remat_of,
)


class Wrapper(torch.autograd.Function):
    """Returns another tensor with the same memory, as the hooks of ZeRO stage 3 do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def test_layers_keep_the_arguments_of_a_wrapped_tensor() -> None:
    """Of two layers with one input, which keep nothing of their own; the gradients are those of plain layers."""
    x, y, weights = draw(2, 3, 4), draw(2, 3, 4) * 1, [draw(5, 4), draw(6, 4)]
    gradients = []
    for plain in (True, False):
        h = Wrapper.apply(x + y if plain else add(x, y))
        with record_saved(exclude=[*weights, x, y]) as saved:
            outs = [linear(h, weight) for weight in weights]
        assert saved.bytes == plain * h.nbytes
        gradients.append(torch.autograd.grad([out.square().sum() for out in outs], [x, *weights]))
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "written to": lambda h: h.mul_(2),
    "another view": lambda h: h[:, :2],
    "copied": lambda h: h.clone(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_tensor_is_not_rebuilt(change: str) -> None:
    """A hook of a user's may change it."""
    h = add(draw(2, 3), draw(2, 3))
    assert remat_of(h) is not None and remat_of(CHANGES[change](h)) is None


def test_nothing_is_attached_where_it_saves_nothing() -> None:
    x, y = draw(2, 3), draw(2, 3)
    with torch.no_grad():
        assert remat_of(add(x, y)) is None
    assert recompute(lambda x, y: remat_of(add(x, y)) is None, x, y)


class Operators(TorchDispatchMode):
    """Names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rebuilt", [False, True])
def test_layers_share_the_gradient_of_their_input(rebuilt: bool) -> None:
    """It is summed in their products and by no sum of tensors, and equals the sum of each layer's."""
    x, weights, found = draw(2, 5, 8), [draw(6, 8), draw(4, 8), draw(5, 8)], {}
    for passing in (True, False):
        h, outs = remat(torch.tanh, x) if rebuilt else torch.tanh(x), []
        for weight in weights:
            out, h = linear_and_input(h, weight) if passing else (linear(h, weight), h)
            outs.append(out)
        with Operators() as seen:
            gradients = torch.autograd.grad([out.sin().sum() for out in outs], [x, *weights])
        found[passing] = gradients, sum(name in ("add", "add_") for name in seen.names), seen.names.count("addmm")
    for pair in zip(found[True][0], found[False][0], strict=True):
        torch.testing.assert_close(*pair)
    assert found[True][1:] == (found[False][1] - 2, 2)


def test_what_autograd_keeps_of_a_chain() -> None:
    """A sum, a module on it, and a function: the layer on each keeps the arguments of the first one."""
    x, y, weight, norm = draw(1, 2, 8), draw(1, 2, 8), draw(3, 8), nn.RMSNorm(8)
    rebuild_output(norm)
    for h, args in ((norm(add(x, y)), (x, y)), (remat(torch.mul, x, y), (x, y))):
        source = remat_of(h)
        assert source is not None
        assert [arg.data_ptr() for arg in source.args] == [arg.data_ptr() for arg in args]
        (grad,) = torch.autograd.grad(linear(h, weight).sum(), weight)
        assert torch.equal(grad, h.sum((0, 1)).expand(3, -1))


def test_recomputation_sees_the_context_of_the_forward_pass() -> None:
    """As it was then, whatever it is when the backward pass comes."""
    factor: ContextVar[float] = ContextVar("factor")
    x = draw(3)
    factor.set(3.0)
    out = recompute(lambda x: (x * factor.get()).square(), x)
    factor.set(5.0)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, 18 * x.detach())
    assert factor.get() == 5.0


def test_chunks_have_the_same_tokens_of_each_rank() -> None:
    """The second argument has the tokens of two ranks. Autograd keeps the arguments alone."""
    x, both = draw(2, 6, 3), draw(2, 12, 3)
    sizes: list[int] = []

    def function(x: Tensor, missing: None, both: Tensor) -> tuple[Tensor, None]:
        sizes.append(x.shape[1])
        first, second = both.chunk(2, dim=1)
        return x.exp() * first.sin() + second, None

    with record_saved(exclude=[x, both]) as saved:
        out, missing = in_chunks(function, 4, x, None, both)
    assert missing is None
    expected = torch.cat([function(x, None, both)[0]], dim=1)
    assert sizes == [4, 2, 6] and torch.equal(out, expected)
    assert saved.bytes == both.nbytes  # the copies that have tokens of both ranks side by side
    found, wanted = (torch.autograd.grad(result.square().sum(), [x, both]) for result in (out, expected))
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_streams_are_kept_on_the_host() -> None:
    """A copy stands for the chosen tensor, whose memory is free after the forward pass; other tensors stay where they are."""
    leaf, other = draw(4), draw(4)
    x = leaf * 1
    expected = (3 * leaf**2 * other).detach()
    memory, kept = weakref.ref(x.untyped_storage()), weakref.ref(other.untyped_storage())
    with keep_on_host(x, None):
        out = recompute(lambda x, other: x**3 * other, x, other)
    del x
    assert memory() is None and kept() is not None
    (grad,) = torch.autograd.grad(out.sum(), leaf)
    assert torch.equal(grad, expected)
