"""A tensor's Remat is found through wrappers, and only if the tensor is unchanged."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megatape.accounting.memory.saved_tensors import record_saved
from megatape.nn.forward_context import changed_context
from megatape.nn.linear_function import linear, linear_and_input
from megatape.nn.norm import RMSNorm, normalize_and_rebuild
from megatape.nn.remat.rebuilt import add_rebuilt, call_rebuilt
from megatape.nn.remat.recompute import recompute
from megatape.nn.remat.remat import Remat


class Wrapper(torch.autograd.Function):
    """Module returning another tensor with the same memory, as the hooks of ZeRO stage 3 do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def test_layers_keep_the_arguments_of_a_wrapped_tensor() -> None:
    """Two layers sharing an input save only its arguments, and have the gradients of plain layers."""
    x = draw(2, 3, 4)
    y = draw(2, 3, 4) * 1
    weights = [draw(5, 4), draw(6, 4)]

    def run(total: Tensor, total_remat: Remat | None) -> tuple[int, tuple[Tensor, ...]]:
        """Return the bytes saved by the layers, and the gradients."""
        h = Wrapper.apply(total)
        with record_saved(exclude=[*weights, x, y]) as saved:
            outputs = [linear(h, weight, remat=total_remat) for weight in weights]
        num_bytes = saved.bytes
        return num_bytes, torch.autograd.grad([output.square().sum() for output in outputs], [x, *weights])

    plain_bytes, expected = run(x + y, None)
    num_bytes, gradients = run(*add_rebuilt(x, y))

    assert plain_bytes == x.nbytes
    assert num_bytes == 0
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        assert torch.equal(gradient, expected_gradient)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "written to": lambda h: h.mul_(2),
    "another view": lambda h: h[:, :2],
    "copied": lambda h: h.clone(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_tensor_is_not_rebuilt(change: str) -> None:
    """A user's hook may change the tensor."""
    h, h_remat = add_rebuilt(draw(2, 3), draw(2, 3))
    assert h_remat is not None
    assert h_remat.matching(h) is h_remat
    assert h_remat.matching(CHANGES[change](h)) is None


def test_there_is_no_remat_where_it_saves_nothing() -> None:
    x = draw(2, 3)
    y = draw(2, 3)
    with torch.no_grad():
        assert add_rebuilt(x, y)[1] is None
    assert recompute(lambda x, y: add_rebuilt(x, y)[1] is None, x, y)


def test_layers_of_encodings_share_a_remat_of_their_input_alone() -> None:
    """Encodings get a plain tensor, so autograd saves other tensors as they are."""
    x = draw(2, 3)
    y = draw(2, 3)
    weight = draw(4, 3)
    total, total_remat = add_rebuilt(x, y)
    other_input = x * 2
    with changed_context(shared_remat=total_remat), record_saved(exclude=[weight, x, y]) as saved:
        linear(total, weight)
        assert saved.bytes == 0
        linear(other_input, weight)
    assert saved.bytes == other_input.nbytes


class Operators(TorchDispatchMode):
    """Records the names of running operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def num_additions(names: list[str]) -> int:
    return names.count("add") + names.count("add_")


@pytest.mark.parametrize("rebuilt", [False, True])
def test_layers_share_the_gradient_of_their_input(rebuilt: bool) -> None:
    """Matrix products accumulate the gradient, without an addition of tensors, and it equals the sum of each layer's."""
    x = draw(2, 5, 8)
    weights = [draw(6, 8), draw(4, 8), draw(5, 8)]

    def run(shares_gradient: bool) -> tuple[tuple[Tensor, ...], list[str]]:
        """Return the gradients, and the operators of the backward pass."""
        h, h_remat = torch.tanh(x), None
        if rebuilt:
            h, h_remat = call_rebuilt(torch.tanh, x)
        outputs = []
        for weight in weights:
            if shares_gradient:
                output, h = linear_and_input(h, weight, remat=h_remat)
            else:
                output = linear(h, weight, remat=h_remat)
            outputs.append(output)
        with Operators() as operators:
            gradients = torch.autograd.grad([output.sin().sum() for output in outputs], [x, *weights])
        return gradients, operators.names

    gradients, names = run(shares_gradient=True)
    expected, plain_names = run(shares_gradient=False)

    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient)
    assert num_additions(names) == num_additions(plain_names) - 2
    assert names.count("addmm") == 2


def test_chained_layers_save_the_first_arguments() -> None:
    """In a chain of sum, norm and function, the layer on each saves the arguments of the first one."""
    x = draw(1, 2, 8)
    y = draw(1, 2, 8)
    weight = draw(3, 8)
    norm = RMSNorm(8, 1e-5)
    norm.weight.data.fill_(2.0)
    for h, h_remat in (normalize_and_rebuild(norm, *add_rebuilt(x, y)), call_rebuilt(torch.mul, x, y)):
        assert h_remat is not None
        assert [argument.data_ptr() for argument in h_remat.recipe.args] == [x.data_ptr(), y.data_ptr()]
        (grad,) = torch.autograd.grad(linear(h, weight, remat=h_remat).sum(), weight)
        assert torch.equal(grad, h.sum((0, 1)).expand(3, -1))
