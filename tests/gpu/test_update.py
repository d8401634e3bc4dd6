"""Updating TAPE's position state by kernels on a GPU, against the plain update in float64: values and all gradients."""

import pytest
import torch

from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.encodings.tape import TapeUpdate
from tests.gpu import GPU
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import relative_difference
from tests.helpers.models.small_models import SHAPE

pytestmark = [*GPU, pytest.mark.numerics]

# Sizes as in the 155M, 1B and 8B models
SIZES = [(12, 12, 64, 48), (16, 16, 128, 64), (32, 8, 128, 32)]
# Tokens per sequence. No block size divides it.
LENGTH = 301


@pytest.mark.parametrize("first", [False, True], ids=["later layer", "first layer"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize(("heads", "channels", "size", "inner"), SIZES)
def test_equals_the_plain_update(heads: int, channels: int, size: int, inner: int, dtype: torch.dtype, first: bool) -> None:
    pytest.importorskip("triton")
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator().manual_seed(0)
    shape = {"hidden_size": 256, "num_heads": heads, "num_kv_heads": channels, "head_dim": size, "position_size": inner}
    layer = TapeUpdate(ModelConfig(**SHAPE | shape), SINGLE)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.1, generator=generator)
    layer.to("cuda", dtype)
    initial, *drawn = (
        torch.randn(2, LENGTH, *sizes, generator=generator) for sizes in ((1, size), (channels, size), (heads, size), (256,))
    )
    results = []
    for exact in (False, True):
        layer.use_kernels(not exact)
        kind = torch.float64 if exact else dtype
        layer.to(kind)
        delta, attended, m = (tensor.to(dtype).to("cuda", kind, copy=True).requires_grad_() for tensor in drawn)
        out = layer(PositionState(initial.to("cuda"), None if first else delta), attended, m).delta
        layer.zero_grad()
        out.double().sin().sum().backward()
        gradients = {"delta": delta.grad, "attended": attended.grad, "m": m.grad}
        gradients |= {name: weight.grad for name, weight in layer.named_parameters()}
        results.append({"out": out} | {name: grad.clone() for name, grad in gradients.items() if grad is not None})
    found, expected = results
    assert found.keys() == expected.keys()
    for name, reference in expected.items():
        assert relative_difference(found[name].double(), reference) < bounds.GPU_KERNEL[dtype], name
