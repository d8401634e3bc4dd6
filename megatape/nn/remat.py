"""Rematerialization of single tensors: the backward pass rebuilds what is cheap to compute and large to save.

A `Remat` says how to rebuild a tensor from others that are saved anyway. Code that makes the tensor passes the Remat on beside
it, and the operations that take one (products and RMSNorm) save its arguments in place of the tensor. All other operations see
a plain tensor. Modules take a Remat by keyword, because the hooks of ZeRO stage 3 wrap the tensors among positional arguments.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.nn.recompute import is_recomputed, recompute

# Rebuilds a tensor from the arguments saved in its place.
Rebuild = Callable[..., Tensor]


class Remat:
    """How to rebuild a tensor in the backward pass: function(*args), cheap and without a graph.

    Args:
        x: The tensor.
        function: Function that computes it. Not a module that ZeRO stage 3 divides, because it runs outside of the modules'
            hooks.
        args: Tensors that operations save in place of x.
        shared_input: x in the backward pass, shared by all operations that saved the arguments.
    """

    def __init__(
        self, x: Tensor, function: Rebuild, args: tuple[Tensor, ...], shared_input: "SharedInput | None" = None
    ) -> None:
        self.function = function
        self.args = args
        self.shared_input = shared_input or SharedInput(function)
        # Not x itself, which is to be freed.
        self._memory = weakref.ref(x.untyped_storage())
        self._shape = x.shape
        self._version = _version(x)

    def matching(self, x: Tensor) -> "Remat | None":
        """Return this Remat if x is the tensor that it rebuilds; None if x is another tensor, or was changed since.

        A wrapper with the same memory, as hooks of ZeRO stage 3 make, is the same tensor. Hooks of users may change it.
        """
        if torch.compiler.is_compiling():
            return None
        is_same = self._memory() is x.untyped_storage() and self._shape == x.shape and self._version == _version(x)
        return self if is_same else None


class SharedInput:
    """The input of several layers in the backward pass: rebuilt once for all of them, and freed after the last one.

    Attributes:
        function: Function that rebuilds it.
        num_consumers: Number of layers whose backward pass needs it.
        num_pending: Number of layers whose backward pass still needs it.
        wait: Function that waits for it while it is being rebuilt; None before and after.
    """

    def __init__(self, function: Rebuild) -> None:
        self.function = function
        self.num_consumers = 0
        self.num_pending = 0
        self.wait: Callable[[], Tensor] | None = None

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return F.linear of the input x in the forward pass."""
        return F.linear(x, weight, bias)

    def begin(self, args: Iterable[Tensor]) -> None:
        """Begin to rebuild the input, unless another layer has begun."""
        if self.wait is None:
            self.num_pending = self.num_consumers
            self.wait = self.rebuild(*args)

    def rebuild(self, *args: Tensor) -> Callable[[], Tensor]:
        """Begin to rebuild the input. Return a function that waits for it."""
        x = self.function(*args)
        return lambda: x

    def finish(self) -> Tensor:
        """Return the input to one of the layers."""
        assert self.wait is not None
        x = self.wait()
        self.num_pending -= 1
        if not self.num_pending:
            self.wait = None
        return x


def identity(x: Tensor) -> Tensor:
    """Return x: the function of a tensor that is saved itself."""
    return x


def saved_for(x: Tensor, remat: Remat | None) -> tuple[Rebuild, tuple[Tensor, ...]]:
    """Return what an operation saves for x, and the function that rebuilds x from it: those of x's Remat, or x itself."""
    matching = None if remat is None else remat.matching(x)
    if matching is None:
        return identity, (x.detach(),)
    return matching.function, matching.args


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version


def saves_memory() -> bool:
    """Whether a Remat saves memory here.

    False if there is no backward pass, inside `recompute`, and while compiling, because torch.compile decides on its own what
    to save.
    """
    return torch.is_grad_enabled() and not torch.compiler.is_compiling() and not is_recomputed()


def add(x: Tensor, y: Tensor) -> tuple[Tensor, Remat | None]:
    """Return x + y, and how to rebuild it from both, where they are saved anyway."""
    total = x + y
    if not saves_memory():
        return total, None
    return total, Remat(total, torch.add, (x.detach(), y.detach()))


def remat(function: Rebuild, *args: Tensor) -> tuple[Tensor, Remat | None]:
    """Return function(*args), whose gradient saves nothing but the arguments, and how to rebuild it from them."""
    if not saves_memory():
        return function(*args), None
    output: Tensor = recompute(function, *args)
    return output, Remat(output, function, tuple(arg.detach() for arg in args))


# The input that the layers of an encoding may share, inside `shared_with_layers`.
_shared: ContextVar[Remat | None] = ContextVar("shared", default=None)


@contextmanager
def shared_with_layers(remat: Remat | None) -> Iterator[None]:
    """Let layers that get this Remat's tensor inside the block save its arguments, without being passed the Remat.

    Encodings read the input of attention through an interface of plain tensors.
    """
    token = _shared.set(remat)
    try:
        yield
    finally:
        _shared.reset(token)


def remat_of(x: Tensor, passed: Remat | None) -> Remat | None:
    """Return the Remat that a caller passed or shares, if it is that of x."""
    if torch.compiler.is_compiling():
        return None
    candidate = passed or _shared.get()
    return None if candidate is None else candidate.matching(x)
