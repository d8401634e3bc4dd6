"""RMSNorm against torch's own under autograd, and the tensors it saves."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from megatape.accounting.memory.saved_tensors import record_saved
from megatape.nn import norm
from megatape.nn.norm import RMSNorm
from megatape.nn.remat.remat import Recipe, Remat
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close

pytestmark = pytest.mark.numerics


# A residual stream, and heads as model.qk_norm normalizes them
TOKENS = (2, 5, 33)
HEADS = (2, 3, 4, 8)
EPS = 1e-5


def draw(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[RMSNorm, Tensor, Tensor, Tensor]:
    """Return a norm, its input as a sum of two tensors, and a gradient of its output."""
    generator = torch.Generator().manual_seed(0)
    module = RMSNorm(shape[-1], EPS).to(dtype)
    module.weight.data.normal_(1.0, 0.2, generator=generator)
    first, second, output_gradient = (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))
    return module, first, second, output_gradient


@pytest.mark.parametrize("rebuilt", [False, True], ids=["kept", "from its summands"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [TOKENS, HEADS], ids=["tokens", "heads"])
def test_equals_autograd(shape: tuple[int, ...], dtype: torch.dtype, rebuilt: bool) -> None:
    """Output and gradients are torch's in float32, rounded once. Autograd saves x in its dtype and one number per row."""
    module, first, second, output_gradient = draw(shape, dtype)
    x = (first + second).requires_grad_()
    weight = module.weight.float()
    expected = F.rms_norm(x.float(), weight.shape, weight, EPS).to(dtype)
    expected_gradients = torch.autograd.grad(expected, [x, module.weight], output_gradient)
    remat = None
    num_saved_tensors = 1
    if rebuilt:
        remat = Remat(x, Recipe(torch.add, (first, second)))
        num_saved_tensors = 2

    with record_saved(exclude=[module.weight]) as saved:
        output = module(x, remat=remat)
    gradients = torch.autograd.grad(output, [x, module.weight], output_gradient)

    for result, expected_result in zip((output, *gradients), (expected, *expected_gradients), strict=True):
        assert result.dtype == dtype
        assert torch.equal(result, expected_result)
    num_rows = x.shape[:-1].numel()
    assert saved.bytes == num_saved_tensors * x.nbytes + num_rows * 4


@pytest.mark.parametrize("trained", ["x", "weight"])
def test_one_gradient_alone(trained: str) -> None:
    """The weight may be frozen, or no layer before the norm is trained."""
    module, x, _, output_gradient = draw(TOKENS, torch.float32)
    x.requires_grad_()
    grad_x, grad_weight = torch.autograd.grad(module(x), [x, module.weight], output_gradient)
    x.requires_grad_(trained == "x")
    module.weight.requires_grad_(trained == "weight")

    module(x).backward(output_gradient)

    if trained == "x":
        assert module.weight.grad is None
        assert x.grad is not None
        assert torch.equal(x.grad, grad_x)
    else:
        assert x.grad is None
        assert module.weight.grad is not None
        assert torch.equal(module.weight.grad, grad_weight)


class _AsOnGpu(TorchDispatchMode):
    """Runs torch's definition of the operator that only GPUs have."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._fused_rms_norm_backward.default:
            assert args[0].is_contiguous()
            func = decomposition_table[func]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=["both", "x", "weight"])
def test_call_of_the_kernel(needs: tuple[bool, bool]) -> None:
    """The GPU's operator gets its arguments in order. tests/gpu/test_model.py tests the kernel itself."""
    module, x, _, output_gradient = draw(TOKENS, torch.float32)
    weight = module.weight.detach()
    _, scale = torch.ops.aten._fused_rms_norm(x, weight.shape, weight, EPS)
    # Grouped queries without a rotation have a gradient with such strides.
    strided = output_gradient.transpose(0, 1).contiguous().transpose(0, 1)

    with _AsOnGpu():
        gradients = norm.fused_rms_norm_backward(strided, x, scale, weight, needs)

    expected = norm._by_formula(output_gradient, x, scale, weight, needs)
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        if expected_gradient is None:
            assert gradient is None
        else:
            assert gradient is not None
            assert_close(gradient, expected_gradient, bounds.DEFINITION)
