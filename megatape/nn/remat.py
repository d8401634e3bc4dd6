"""Rematerialization: the backward pass computes again what is cheap to compute and large to keep.

`recompute` does so for a function: autograd keeps its arguments alone (activation checkpointing), with `keep_on_host` in host
memory. `in_chunks` does so for some tokens at a time.

A `Remat` does so for a tensor that several operations keep, each for its own gradient. It is attached to the tensor's memory,
so it needs no place in a signature, lives as long as the memory, and survives hooks that wrap tensors, such as those of ZeRO
stage 3. The operations that look for it (`linear` and RMSNorm) keep its arguments in place of the tensor: something else keeps
them anyway. All other operations see a plain tensor.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

Rebuild = Callable[..., Tensor]  # what a tensor is kept as -> the tensor

_inside: ContextVar[bool] = ContextVar("inside", default=False)


def recompute(function: Callable[..., Any], *args: Any) -> Any:
    """function(*args), for which autograd keeps only the arguments; the backward pass computes the rest again.

    Both runs see the context variables of this call.
    """
    if torch.compiler.is_compiling():  # a compiler knows no contexts; what asks for them, tensor parallelism, is not compiled
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    if not torch.is_grad_enabled():
        return function(*args)
    context = copy_context()
    context.run(_inside.set, True)
    return checkpoint(partial(context.run, function), *args, use_reentrant=False, preserve_rng_state=False)


def in_chunks(function: Callable[..., Any], size: int, *args: Tensor | None) -> tuple[Any, ...]:
    """function(*args) of some tokens after the others, each computed again by `recompute`.

    Args:
        function: Takes and returns tensors of tokens, and computes each token alone.
        size: Tokens of a chunk.
        args: [B, N/T, ...], of which the first is not None, or with the tokens of all T ranks [B, N, ...]: a chunk has the same
            tokens of each rank.
    """
    assert args[0] is not None
    length = args[0].shape[1]

    def chunks(arg: Tensor | None) -> Iterable[Tensor | None]:
        return repeat(None) if arg is None else [x.flatten(1, 2) for x in arg.unflatten(1, (-1, length)).split(size, dim=2)]

    outputs = [recompute(function, *chunk) for chunk in zip(*map(chunks, args), strict=False)]
    return tuple(None if parts[0] is None else torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True))


def keep_on_host(*tensors: Tensor | None) -> AbstractContextManager[Any]:
    """Let autograd keep these in host memory inside the block; on a CPU, copies.

    Copies are made in the stream that computes: another one would need the device's memory until they are done.
    """
    chosen = {tensor.untyped_storage()._cdata for tensor in tensors if tensor is not None}

    def pack(saved: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        if saved.untyped_storage()._cdata not in chosen:
            return saved
        host = torch.empty_like(saved, device="cpu" if saved.is_cuda else None, pin_memory=saved.is_cuda)
        return saved.device, host.copy_(saved, non_blocking=True)

    def unpack(kept: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        return kept if isinstance(kept, Tensor) else kept[1].to(kept[0], non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def recomputed() -> bool:
    """Whether this code runs inside `recompute`.

    There tensors live only from the second run to the backward pass right after it: keeping a gathered input is cheap,
    while gathering it a third time is not.
    """
    return _inside.get()


class Remat:
    """How to rebuild a tensor in the backward pass: function(*args), cheap and without a graph.

    Attributes:
        function: Not a module that ZeRO stage 3 divides, since it runs outside of the modules' hooks.
        args: What operations keep in place of the tensor.
        rebuilt: The tensor in the backward pass, which all operations that keep the arguments share.
    """

    def __init__(self, function: Rebuild, args: tuple[Tensor, ...], rebuilt: "RecomputedInput | None" = None) -> None:
        self.function = function
        self.args = args
        self.rebuilt = rebuilt or RecomputedInput(function)

    def then(self, function: Callable[[Tensor], Tensor]) -> "Remat":
        """The remat of function(the tensor)."""
        rebuild = self.function
        return Remat(lambda *args: function(rebuild(*args)), self.args)


class RecomputedInput:
    """The input of several layers, rebuilt once for all their backward passes and released after the last one."""

    def __init__(self, function: Rebuild) -> None:
        self.function = function
        self.uses = 0
        self.left = 0
        self.wait: Callable[[], Tensor] | None = None

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """F.linear of the input x in the forward pass."""
        return F.linear(x, weight, bias)

    def begin(self, args: Iterable[Tensor]) -> None:
        """Begin to rebuild, unless another layer has."""
        if self.wait is None:
            self.left, self.wait = self.uses, self.rebuild(*args)

    def rebuild(self, *args: Tensor) -> Callable[[], Tensor]:
        """Returns a function that waits for the input."""
        whole = self.function(*args)
        return lambda: whole

    def finish(self) -> Tensor:
        """The input, for one of the layers."""
        assert self.wait is not None
        whole = self.wait()
        self.left -= 1
        if not self.left:
            self.wait = None
        return whole


def identity(x: Tensor) -> Tensor:
    """x: what a tensor that is kept is rebuilt from."""
    return x


def attach(x: Tensor, remat: Remat) -> Tensor:
    """Let operations on x keep the arguments of `remat` in its place. Returns x."""
    x.untyped_storage().remat = remat, x.shape, _version(x)  # type: ignore[attr-defined]
    return x


def remat_of(x: Tensor) -> Remat | None:
    """The remat that was attached to x, unless x is another view of the same memory or was changed since."""
    if torch.compiler.is_compiling():
        return None
    attached = getattr(x.untyped_storage(), "remat", None)
    return attached[0] if attached is not None and attached[1:] == (x.shape, _version(x)) else None


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version


def _saves() -> bool:
    """Whether a remat saves memory here.

    Not without a backward pass, not inside `recompute`, and not under a compiler, which chooses itself what to keep.
    """
    return torch.is_grad_enabled() and not torch.compiler.is_compiling() and not recomputed()


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, rebuilt from both where they are kept anyway."""
    total = x + y
    return attach(total, Remat(torch.add, (x.detach(), y.detach()))) if _saves() else total


def remat(function: Rebuild, *args: Tensor) -> Tensor:
    """function(*args), where neither its gradient nor operations on it keep anything but the arguments."""
    if not _saves():
        return function(*args)
    return attach(recompute(function, *args), Remat(function, tuple(arg.detach() for arg in args)))


def rebuild_output(module: nn.Module) -> None:
    """Let operations on the output of a module keep its input in place of the output."""
    module.register_forward_hook(_attach_to_output)


def _attach_to_output(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
    (x,) = inputs
    if _saves():
        attach(output, (remat_of(x) or Remat(identity, (x.detach(),))).then(module))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear, which keeps what x is rebuilt from in place of x."""
    source = remat_of(x)
    if source is None:
        return F.linear(x, weight, bias)
    y, _ = _Linear.apply(x, weight, bias, source.rebuilt, *source.args)
    return y


def linear_and_input(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`linear`, and x for the next layer that multiplies it.

    In the backward pass each of the layers adds its gradient of x to that of the next one as it multiplies. Otherwise autograd
    would write and read each by itself.
    """
    source = remat_of(x)
    if source is None and (torch.compiler.is_compiling() or not torch.is_grad_enabled()):
        return F.linear(x, weight, bias), x
    source = source or Remat(identity, (x.detach(),))
    return _Linear.apply(x, weight, bias, source.rebuilt, *source.args)  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    """x W^T (+ b), and x. Keeps what x is rebuilt from, unless the weight is frozen, and the weight itself.

    It keeps that itself, because ZeRO stage 3 frees and refills its storage.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rebuilt: RecomputedInput, *args: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.rebuilt = rebuilt
        ctx.set_materialize_grads(False)
        rebuilt.uses += weight.requires_grad
        ctx.save_for_backward(weight, *(args if weight.requires_grad else ()))
        return rebuilt.product(x, weight, bias), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_others: Tensor | None) -> tuple[Tensor | None, ...]:
        weight, *args = ctx.saved_tensors
        needs_weight, needs_bias = ctx.needs_input_grad[1:3]
        if needs_weight:
            ctx.rebuilt.begin(args)  # what it gathers overlaps with the product for the input
        if of_others is None:
            grad_x = grad @ weight
        else:
            total = of_others.contiguous().flatten(0, 1)
            grad_x = torch.addmm(total, grad.flatten(0, 1), weight, out=total).view_as(of_others)
        grad_weight = grad.flatten(0, 1).T @ ctx.rebuilt.finish().flatten(0, 1) if needs_weight else None
        grad_bias = grad.sum((0, 1)) if needs_bias else None
        return grad_x, grad_weight, grad_bias, *[None] * (len(ctx.needs_input_grad) - 3)
