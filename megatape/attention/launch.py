"""Launches of our own kernels. On the meta device none runs; who counts what a GPU does (megatape/plan/work.py) sees them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

# FLOPs of a launch, and the tensors that it reads or writes.
Observer = Callable[[float, list[Tensor]], None]
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """The observer sees every launch inside the block, also those of backward passes."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def launch(kernel: Any, grid: tuple[int, ...], flops: float, warps: int, stages: int, arguments: dict[str, Any]) -> None:
    """Run a Triton kernel. flops: of its matrix products."""
    tensors = [argument for argument in arguments.values() if isinstance(argument, Tensor)]
    if (observer := _observer.get()) is not None:
        observer(flops, tensors)
    if not tensors[0].is_meta:
        kernel[grid](**arguments, num_warps=warps, num_stages=stages)
