"""RMSNorm against torch's own under autograd, and the tensors it saves."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from megatape.accounting.saved_tensors import record_saved
from megatape.nn import norm
from megatape.nn.norm import RMSNorm
from megatape.nn.remat import Recipe, Remat
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close

pytestmark = pytest.mark.numerics


# a residual stream; heads, as model.qk_norm has them
TOKENS = (2, 5, 33)
HEADS = (2, 3, 4, 8)
EPS = 1e-5


def draw(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[RMSNorm, Tensor, Tensor, Tensor]:
    """Return a norm, its input as a sum of two tensors, and a gradient of its output."""
    generator = torch.Generator().manual_seed(0)
    module = RMSNorm(shape[-1], EPS).to(dtype)
    module.weight.data.normal_(1.0, 0.2, generator=generator)
    first, second, grad = (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))
    return module, first, second, grad


@pytest.mark.parametrize("rebuilt", [False, True], ids=["kept", "from its summands"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [TOKENS, HEADS], ids=["tokens", "heads"])
def test_equals_autograd(shape: tuple[int, ...], dtype: torch.dtype, rebuilt: bool) -> None:
    """Output and gradients are torch's in float32, rounded once. Autograd saves x in its dtype and one number per row."""
    module, first, second, grad = draw(shape, dtype)
    x = (first + second).requires_grad_()
    weight = module.weight.float()
    expected = F.rms_norm(x.float(), weight.shape, weight, EPS).to(dtype)
    wanted = torch.autograd.grad(expected, [x, module.weight], grad)
    with record_saved(exclude=[module.weight]) as saved:
        remat = Remat(x, Recipe(torch.add, (first, second))) if rebuilt else None
        out = module(x, remat=remat)
    found = torch.autograd.grad(out, [x, module.weight], grad)
    for ours, theirs in zip((out, *found), (expected, *wanted), strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, theirs)
    assert saved.bytes == (2 if rebuilt else 1) * x.nbytes + x.shape[:-1].numel() * 4


@pytest.mark.parametrize("trained", ["x", "weight"])
def test_one_gradient_alone(trained: str) -> None:
    """The weight may be frozen, or no layer before the norm is trained."""
    module, x, _, grad = draw(TOKENS, torch.float32)
    both = torch.autograd.grad(module(x.requires_grad_()), [x, module.weight], grad)
    x.requires_grad_(trained == "x"), module.weight.requires_grad_(trained == "weight")
    module(x).backward(grad)
    for tensor, expected in zip((x, module.weight), both, strict=True):
        assert (tensor.grad is not None) == tensor.requires_grad
        assert tensor.grad is None or torch.equal(tensor.grad, expected)


class _AsOnGpu(TorchDispatchMode):
    """Runs torch's definition of the operator that only GPUs have."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._fused_rms_norm_backward.default:
            assert args[0].is_contiguous()
            func = decomposition_table[func]
        return func(*args, **(kwargs or {}))


def test_call_of_the_kernel() -> None:
    """The GPU's operator gets its arguments in order. tests/gpu/test_model.py tests the kernel itself."""
    module, x, _, grad = draw(TOKENS, torch.float32)
    _, scale = torch.ops.aten._fused_rms_norm(x, module.weight.shape, module.weight, EPS)
    weight = module.weight.detach()
    for needs in ((True, True), (True, False), (False, True)):
        with _AsOnGpu():
            strided = grad.transpose(0, 1).contiguous().transpose(0, 1)  # as grouped queries without a rotation give it
            found = norm.fused_rms_norm_backward(strided, x, scale, weight, needs)
        for ours, expected in zip(found, norm._by_formula(grad, x, scale, weight, needs), strict=True):
            if ours is None or expected is None:
                assert ours is expected
            else:
                assert_close(ours, expected, bounds.DEFINITION)
