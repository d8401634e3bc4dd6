"""Private names of torch, as of version 2.13.0.

tests/private_names.md lists them, and the few files that use others. tests/source/test_private_names.py finds unlisted files.
Exports carry hf/modeling/, so that folder has its own.

Slow modules are imported inside functions. tests/utils/pytorch/test_torch_internals.py calls each function, so another torch
version fails with the missing name.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeProcessGroup
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import distributed_c10d
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

# Names imported for other modules, which also import every name below.
__all__ = ["FakeTensorMode", "OpOverload", "TorchDispatchMode", "tree_leaves", "tree_map_only"]

# Attention as one operator on any device -> operator with the same FLOPs, for which torch has a formula.
ATTENTION_OPERATORS = {
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable: torch.ops.aten._scaled_dot_product_efficient_attention,
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward: (
        torch.ops.aten._scaled_dot_product_efficient_attention_backward
    ),
}


def fake_group(name: str, size: int) -> dist.ProcessGroup:
    """Return a process group whose backend sends nothing.

    Args:
        name: Group name.
        size: Number of ranks. This process is rank 0, and the others do not exist.
    """
    group = dist.ProcessGroup(dist.HashStore(), 0, size)
    kind = dist.ProcessGroup.BackendType.CUSTOM
    backend = FakeProcessGroup._create_internal(0, size)
    for device in ("cpu", "meta"):
        group._register_backend(torch.device(device), kind, backend)
    group._set_default_backend(kind)
    group._set_group_name(f"fake {name}")  # type: ignore[arg-type]
    return group


def storage_id(tensor: Tensor) -> int:
    """Return a number that tensors sharing memory have in common, while the memory is in use."""
    return tensor.untyped_storage()._cdata


def set_default_timeout(timeout: timedelta) -> None:
    """Set the process groups' default timeout. torch's is 10 minutes for NCCL and 30 for gloo."""
    distributed_c10d.default_pg_timeout = timeout
    distributed_c10d.default_pg_nccl_timeout = timeout


def clone_default_store() -> dist.Store:
    """Connect to the rendezvous store a second time."""
    return distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined, no-any-return]


def named_group(name: str) -> dist.ProcessGroup:
    """Return the process group with this `group_name`."""
    return distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type, no-any-return]


def count_collectives(description: str) -> tuple[int, int]:
    """Count the collectives that this rank has started.

    Args:
        description: Description of the process groups to count separately.

    Returns:
        Count in all other groups, and count in groups with this description.
    """
    others = 0
    described = 0
    # Copied, because the main thread may create a group meanwhile.
    groups = list(distributed_c10d._world.pg_map)
    for group in groups:
        # Backends that do not count raise a RuntimeError.
        with suppress(RuntimeError):
            count = group._get_sequence_number_for_group()  # type: ignore[attr-defined]
            if group.group_desc == description:
                described += count
            else:
                others += count
    return others, described


def fused_rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Compute the RMS norm in float32, by one kernel on a GPU.

    Returns:
        x * scale * weight, and scale = 1 / sqrt(mean(x^2) + eps) [..., 1].
    """
    out, scale = torch.ops.aten._fused_rms_norm(x, weight.shape, weight, eps)
    return out, scale


def fused_rms_norm_backward(
    grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the gradients of `fused_rms_norm`, on a GPU or on the meta device.

    Args:
        grad: Gradient of the output.
        x: Input.
        scale: Second result of `fused_rms_norm`.
        weight: Weight.
        needs: Whether x and weight need a gradient.

    Returns:
        Gradients of x and weight. A gradient that is not needed is None.
    """
    # Grouped queries without a rotation give a gradient with strides, which a kernel might not expect.
    d_x, d_weight = torch.ops.aten._fused_rms_norm_backward(grad.contiguous(), x, weight.shape, scale, weight, needs)
    return d_x, d_weight


@contextmanager
def fused_on_shapes() -> Iterator[None]:
    """Let dispatch modes on the meta device see attention and `fused_rms_norm` as one operator each."""

    def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        # This operator supports grouped queries without the argument.
        kwargs.pop("enable_gqa", None)
        outputs = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(q, k, v, attn_mask, *args, **kwargs)
        return outputs[0]

    def gradients(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor | None, ...]:
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("scaled_dot_product_attention", attention, "AutogradMeta")
        # The caller of the norm has its own backward pass.
        library.impl("_fused_rms_norm", torch.library.fallthrough_kernel, "AutogradMeta")
        backward = "_scaled_dot_product_fused_attention_overrideable_backward"
        # torch 2.11 has no kernel on the meta device.
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{backward}", "Meta"):
            library.impl(backward, gradients, "Meta")
        yield


def prefer_attention_kernels(order: list[SDPBackend]) -> None:
    """Set the order of kernels that scaled_dot_product_attention tries."""
    torch._C._set_sdp_priority_order([kernel.value for kernel in order])  # type: ignore[attr-defined]


def attention_kernel(q: Tensor, k: Tensor, v: Tensor) -> SDPBackend:
    """Return the kernel that causal scaled_dot_product_attention would select."""
    return SDPBackend(torch._fused_sdp_choice(q, k, v, is_causal=True))


def scaled_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Return x weight^T in bfloat16 for FP8 matrices with the same scale."""
    return torch._scaled_mm(x, weight.T, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target, in few kernels."""
    torch._foreach_copy_(targets, sources)


def zero_all(tensors: list[Tensor]) -> None:
    """Fill each tensor with zeros, in few kernels."""
    torch._foreach_zero_(tensors)


def norms(tensors: list[Tensor], order: float) -> list[Tensor]:
    """Return the norm of each tensor in float64, in few kernels."""
    return list(torch._foreach_norm(tensors, order, dtype=torch.float64))


def has_gradient_hooks(tensor: Tensor) -> bool:
    """Whether functions registered by `tensor.register_hook` read or change its gradient."""
    return bool(tensor._backward_hooks)


@contextmanager
def autograd_in_operator() -> Iterator[None]:
    """Let autograd record what an operator computes inside, as torch.enable_grad asks for. torch excludes that there."""
    keys = torch._C.DispatchKey
    with (
        torch._C._SetExcludeDispatchKeyGuard(keys.AutogradFunctionality, False),
        torch._C._SetExcludeDispatchKeyGuard(keys.ADInplaceOrView, False),
    ):
        yield


def is_view(func: Any) -> bool:
    """Whether the result of an ATen operator is a view of its input."""
    if func is torch.ops.aten._unsafe_view.default:
        return True
    aliases = [result.alias_info for result in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def has_cpp_compiler() -> bool:
    """Whether torch's compiler finds a C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return False
    return True


def limit_recompilations() -> None:
    """Compile a function for at most 64 shapes. Training and evaluating at several lengths soon reaches torch's limit of 8."""
    torch._dynamo.config.recompile_limit = 64


def fail_beyond_recompile_limit() -> None:
    """Raise an error beyond the recompilation limit, instead of running the function uncompiled."""
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def aot_backend(compiler: Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]) -> Any:
    """Return a torch.compile backend that passes Inductor's graphs to a compiler.

    Args:
        compiler: Called with a forward or backward graph and its example inputs.
    """
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def compile_boxed(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return make_boxed_func(compiler(graph, inputs))  # type: ignore[no-any-return]

    return aot_autograd(fw_compiler=compile_boxed, partition_fn=min_cut_rematerialization_partition)
