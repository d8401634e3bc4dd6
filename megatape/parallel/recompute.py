"""Activation checkpointing: of whole functions, about which layers can ask before they decide what to keep, and of tensors."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

_inside: ContextVar[bool] = ContextVar("inside", default=False)


def recompute(function: Callable[..., Any], *args: Any) -> Any:
    """function(*args), for which autograd keeps only the arguments; the backward pass computes the rest again."""
    if torch.compiler.is_compiling():  # a compiler knows no contexts; what asks for them, tensor parallelism, is not compiled
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: (_Inside(), _Inside()))


def recomputed() -> bool:
    """Whether this code runs inside `recompute`.

    What is kept there lives only from the second run to the backward pass right after it: keeping a gathered input is cheap,
    while gathering it a third time is not."""
    return _inside.get()


@dataclass(frozen=True)
class Origin:
    """What a tensor was computed from: function(*args), cheaply, without a graph.

    Whoever needs the tensor in the backward pass keeps the arguments instead, which something else keeps anyway."""

    function: Callable[..., Tensor]
    args: tuple[Tensor, ...]

    def then(self, function: Callable[[Tensor], Tensor]) -> "Origin":
        """The origin of function(the tensor)."""
        return Origin(lambda *args: function(self.function(*args)), self.args)


def origin_of(function: Callable[..., Tensor], *args: Tensor) -> Origin | None:
    """The origin of function(*args), or None where it saves nothing: without a backward pass, inside `recompute`, and under a
    compiler, which chooses itself what to keep.

    function: not a module that ZeRO stage 3 divides, since the backward pass calls it outside of the modules' hooks."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or recomputed():
        return None
    return Origin(function, tuple(arg.detach() for arg in args))


def derive(function: Callable[..., Tensor], *args: Tensor, keep: bool) -> tuple[Tensor, Origin | None]:
    """function(*args), of which autograd keeps only the arguments, and its origin; or, with `keep`, without one."""
    origin = None if keep else origin_of(function, *args)
    return (function if origin is None else partial(recompute, function))(*args), origin


class _Inside:
    """Context manager around one run; torch enters it again at every backward pass through a retained graph."""

    def __enter__(self) -> None:
        self.token = _inside.set(True)

    def __exit__(self, *_: object) -> None:
        _inside.reset(self.token)
