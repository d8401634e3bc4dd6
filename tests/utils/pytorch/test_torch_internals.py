"""Private names of torch used by the package exist and do what is expected."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode

from megatape.utils.pytorch import torch_internals

# torch version whose private names were read
VERSION = "2.13.0"


def test_version() -> None:
    assert torch.__version__.startswith(VERSION), "read torch_internals.py beside the new version, then change this one"


def test_groups_and_timeouts() -> None:
    group = torch_internals.fake_group("test", 4)
    assert (group.size(), group.rank()) == (4, 0)
    with patch.multiple(distributed_c10d, default_pg_timeout=None, default_pg_nccl_timeout=None):
        torch_internals.set_default_timeout(timedelta(seconds=7))
        assert distributed_c10d.default_pg_timeout == distributed_c10d.default_pg_nccl_timeout == timedelta(seconds=7)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        world = dist.group.WORLD
        assert world is not None
        assert torch_internals.named_group(world.group_name) is world
        others, described = torch_internals.count_collectives("another")
        dist.all_reduce(torch.ones(1))
        assert torch_internals.count_collectives("another") == (others + 1, described)
        assert torch_internals.clone_default_store().check(["missing"]) is False
    finally:
        dist.destroy_process_group()


def test_order_of_attention_kernels() -> None:
    """A GPU uses the first kernel that supports a call. A CPU has one kernel besides plain products."""
    before = torch._C._get_sdp_priority_order()
    try:
        torch_internals.prefer_attention_kernels([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH])
        assert torch._C._get_sdp_priority_order()[:2] == [SDPBackend.CUDNN_ATTENTION.value, SDPBackend.MATH.value]
    finally:
        torch._C._set_sdp_priority_order(before)
    q = torch.empty(1, 1, 128, 16)
    wider = torch.empty(1, 1, 128, 32)
    assert torch_internals.attention_kernel(q, q, q) == SDPBackend.FLASH_ATTENTION
    assert torch_internals.attention_kernel(q, q, wider) == SDPBackend.MATH


def test_fused_operators_on_shapes() -> None:
    """Inside the block, a mode sees one operator for attention, one for its backward pass and one for RMSNorm."""
    with torch.device("meta"):
        q = torch.empty(1, 2, 8, 16, requires_grad=True)
        v = torch.empty(1, 2, 8, 24)
        weight = torch.empty(24)

    def seen() -> list[str]:
        with Dispatched() as mode:
            out = F.scaled_dot_product_attention(q, q, v, is_causal=True)
            torch.autograd.grad(out, q, torch.empty_like(out))
            torch_internals.fused_rms_norm(v, weight, 1e-6)
        return mode.names

    with torch_internals.fused_on_shapes():
        inside = [name for name in seen() if name.startswith("_")]
    attention = "_scaled_dot_product_fused_attention_overrideable"
    assert inside == [attention, f"{attention}_backward", "_fused_rms_norm"]
    assert attention not in (outside := seen())
    assert "_fused_rms_norm" not in outside


class Dispatched(TorchDispatchMode):
    """Records the names of dispatched operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_operators() -> None:
    x = torch.randn(3, 16)
    weight = torch.randn(16)
    normed, scale = torch_internals.fused_rms_norm(x, weight, 1e-6)
    expected = torch.nn.functional.rms_norm(x, (16,), weight, 1e-6)
    torch.testing.assert_close(normed, expected)
    torch.testing.assert_close(x * scale * weight, expected)
    grad = torch.empty_like(x, device="meta")
    on_shapes = x.to("meta")
    d_x, d_weight = torch_internals.fused_rms_norm_backward(grad, on_shapes, scale.to("meta"), weight.to("meta"), (True, False))
    assert d_x is not None
    assert d_x.shape == x.shape
    assert d_weight is None
    one = torch.zeros(2)
    other = torch.ones(2)
    torch_internals.copy_all([one], [other])
    assert one.tolist() == [1.0, 1.0]
    torch_internals.zero_all([one])
    assert one.tolist() == [0.0, 0.0]
    (norm,) = torch_internals.norms([torch.tensor([3.0, 4.0])], 2)
    assert (norm.item(), norm.dtype) == (5.0, torch.float64)
    weight = torch.zeros(2, requires_grad=True)
    assert not torch_internals.has_gradient_hooks(weight)
    with weight.register_hook(lambda gradient: None):
        assert torch_internals.has_gradient_hooks(weight)
    assert not torch_internals.has_gradient_hooks(weight)
    assert torch_internals.is_view(torch.ops.aten.view.default)
    assert not torch_internals.is_view(torch.ops.aten.add.Tensor)
    assert callable(torch._scaled_mm)
    assert isinstance(torch_internals.has_cpp_compiler(), bool)


@pytest.mark.slow
def test_compiler() -> None:
    graphs = []

    def compiler(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        forward: Callable[..., Any] = graph.forward
        return forward

    torch_internals.limit_recompilations()
    torch_internals.fail_beyond_recompile_limit()
    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: (x * x).sum(), backend=torch_internals.aot_backend(compiler))(x).backward()
    assert len(graphs) == 2
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_autograd_inside_an_operator() -> None:
    """torch excludes autograd there: without the context, the inner result requires no gradient."""
    recorded = []

    def slope(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            recorded.append(leaf.sin().requires_grad)
            with torch_internals.autograd_in_operator():
                (gradient,) = torch.autograd.grad(leaf.sin().sum(), leaf)
        return gradient.clone()

    operator = torch.library.custom_op("megatape_test::slope", slope, mutates_args=())

    assert torch.equal(operator(torch.zeros(2)), torch.ones(2))
    assert recorded == [False]


def test_storage_id() -> None:
    tensor = torch.zeros(4)
    assert torch_internals.storage_id(tensor) == torch_internals.storage_id(tensor[2:])
    assert torch_internals.storage_id(tensor) != torch_internals.storage_id(tensor.clone())
