"""Activation checkpointing that knows of gathered inputs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from torch.utils.checkpoint import checkpoint

_inside: ContextVar[bool] = ContextVar("inside", default=False)


def recompute(function: Callable[..., Any], *args: Any) -> Any:
    """function(*args), of which autograd keeps the arguments alone; the backward pass computes the rest again."""
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=_contexts)


def recomputed() -> bool:
    """Whether this code runs inside `recompute`. What it keeps lives only from the second run to the backward pass that follows, so
    that keeping a gathered input is cheap, and gathering it a third time is not."""
    return _inside.get()


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return _entered(), _entered()


@contextmanager
def _entered() -> Iterator[None]:
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)
