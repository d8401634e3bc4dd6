"""Activation checkpointing, which layers can ask about before they decide what to keep."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
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


class _Inside:
    """Context manager around one run; torch enters it again at every backward pass through a retained graph."""

    def __enter__(self) -> None:
        self.token = _inside.set(True)

    def __exit__(self, *_: object) -> None:
        _inside.reset(self.token)
