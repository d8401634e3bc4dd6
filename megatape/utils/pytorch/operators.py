"""Functions that torch.compile keeps as one operator of a graph, instead of tracing what they do.

Our Triton kernels, FlashAttention-4 and the loops of `blocked` attention run this way. A block is then a single graph,
whatever they do inside.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, TypeVarTuple, get_type_hints

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from megatape.utils.pytorch.torch_internals import autograd_in_operator, tree_map_only

NAMESPACE = "megatape"

# Arguments of an operator, by position.
Arguments = TypeVarTuple("Arguments")
# A tensor, or a list of tensors.
Result = TypeVar("Result")


def operator(
    name: str,
    fake: Callable[[*Arguments], Result],
    flops: Callable[[*Arguments], int] | None = None,
) -> Callable[[Callable[[*Arguments], Result]], Callable[[*Arguments], Result]]:
    """Return a decorator for a function of tensors and plain values that has no gradient of its own.

    In a compiled graph, the function is the operator `megatape::name`. Everywhere else it remains a plain function: it has
    no overhead, and dispatch modes see the operators inside. An autograd.Function around it adds the gradient. With `flops`,
    the function is an operator everywhere.

    The function takes its arguments by position. An argument may also be a NamedTuple of tensors and plain values. The operator
    then has an argument for each of its fields. Annotations must be those that torch.library.custom_op understands, which has
    no result that may be None: see `drop_nones`. The function must not change its arguments, and its results must not share
    memory with them or with each other.

    Args:
        name: Name of the operator.
        fake: Function of the same arguments returning empty tensors with the shapes, dtypes and strides of the results.
        flops: Function of the same arguments returning the FLOPs, for a function that cannot run on the meta device. None to
            count them there.
    """

    def decorate(function: Callable[[*Arguments], Result]) -> Callable[[*Arguments], Result]:
        arguments = _FlatArguments(function)

        def run(*flat: Any) -> Result:
            with torch.no_grad(), autograd_in_operator():
                return function(*arguments.group(flat))

        def fake_run(*flat: Any) -> Result:
            return fake(*arguments.group(flat))

        def flop_formula(*flat: Any, out_val: Any = None) -> int:
            if flops is not None:
                return flops(*arguments.group(flat))
            return _count_flops(function, arguments.group(flat))

        run.__signature__ = arguments.signature  # type: ignore[attr-defined]
        torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=()).register_fake(fake_run)
        packet = getattr(getattr(torch.ops, NAMESPACE), name)
        register_flop_formula(packet, get_raw=True)(flop_formula)
        overload = packet.default

        @wraps(function)
        def call(*args: *Arguments) -> Result:
            if flops is not None or torch.compiler.is_compiling():
                return overload(*arguments.flatten(args))  # type: ignore[no-any-return]
            return function(*args)

        return call

    return decorate


class _FlatArguments:
    """Flat arguments of a function, by position: a NamedTuple stands for its fields.

    Attributes:
        signature: Signature with flat arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        flat: dict[str, Any] = {}
        # For each argument of the function, its class if that is a NamedTuple, or else None.
        self._groups: list[Any] = []
        for name in signature(function).parameters:
            fields = getattr(hints[name], "_fields", None)
            if fields is None:
                self._groups.append(None)
                flat[name] = hints[name]
            else:
                self._groups.append(hints[name])
                flat |= get_type_hints(hints[name])
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=hint) for name, hint in flat.items()]
        self.signature = signature(function).replace(parameters=parameters, return_annotation=hints["return"])

    def flatten(self, args: Sequence[Any]) -> list[Any]:
        """Return flat arguments from those of the function."""
        flat: list[Any] = []
        for group, argument in zip(self._groups, args, strict=True):
            if group is None:
                flat.append(argument)
            else:
                flat.extend(argument)
        return flat

    def group(self, flat: Sequence[Any]) -> Iterator[Any]:
        """Yield the function's arguments from flat ones."""
        remaining = iter(flat)
        for group in self._groups:
            if group is None:
                yield next(remaining)
            else:
                yield group(*[next(remaining) for _ in group._fields])


def drop_nones(*tensors: Tensor | None) -> list[Tensor]:
    """Return the tensors that are not None, contiguous: the results of an operator some of whose results may be missing."""
    return [tensor.contiguous() for tensor in tensors if tensor is not None]


def restore_nones(results: Sequence[Tensor], *exist: bool) -> list[Any]:
    """Return the tensors that `drop_nones` got, each a Tensor or None.

    Args:
        results: Results of an operator.
        exist: For each tensor, whether it is not None.
    """
    remaining = list(results)
    tensors: list[Tensor | None] = []
    for exists in exist:
        if exists:
            tensors.append(remaining.pop(0))
        else:
            tensors.append(None)
    return tensors


def empty_copies(*tensors: Tensor | None) -> list[Tensor]:
    """Return an empty contiguous tensor like each one that is not None: the shapes of gradients."""
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors if x is not None]


def _count_flops(function: Callable[..., Any], args: Iterator[Any]) -> int:
    """Return the FLOPs of a function, which runs on shapes."""
    meta_args = tree_map_only(Tensor, _on_meta, list(args))
    with FlopCounterMode(display=False) as counter:
        function(*meta_args)
    return counter.get_total_flops()


def _on_meta(x: Tensor) -> Tensor:
    return torch.empty_like(x, device="meta")
