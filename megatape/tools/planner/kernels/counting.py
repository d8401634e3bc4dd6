"""Counts the operations of code running on shapes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from megatape.tools.planner.kernels.operations import Work, operation, tensors_of
from megatape.utils.pytorch.torch_internals import TorchDispatchMode, fused_on_shapes

# Namespaces of the counted operators: those of PyTorch, and launches of our kernels.
COUNTED_NAMESPACES = ("aten", "megatape")


@contextmanager
def count() -> Iterator[Work]:
    """Count the operations inside the block, including backward passes."""
    with fused_on_shapes(), _Operators() as operators:
        yield operators.work


class _Operators(TorchDispatchMode):
    """Counts every dispatched operator."""

    def __init__(self) -> None:
        super().__init__()
        self.work: Work = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace in COUNTED_NAMESPACES:
            kernel = operation(func, args, kwargs, out)
            if kernel is not None:
                self.work[kernel] += 1
        return out


def run_backward(outputs: Any, weights: nn.Module, args: list[Any]) -> None:
    """Run a function's backward pass.

    Args:
        outputs: Outputs of the function.
        weights: Module with the function's weights.
        args: Arguments of the function.
    """
    differentiable = [out for out in tensors_of(outputs) if out.grad_fn is not None]
    for leaf in tensors_of([args, *weights.parameters()]):
        # Another run would add to this gradient.
        leaf.grad = None
    torch.autograd.backward(differentiable, [torch.empty_like(out) for out in differentiable])
