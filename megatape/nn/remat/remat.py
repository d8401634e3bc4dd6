"""A tensor's Remat: how the backward pass rebuilds it, and for whom. The package's docstring tells when.

Operations that take a Remat (linear layers and RMSNorm) save the recipe's arguments instead of the tensor. For example, the
residual stream after a block is x + m, and both terms are already saved:

    total, total_remat = add_rebuilt(x, m)          # rebuilt.py
    normalized = norm(total, remat=total_remat)     # saves x and m, not total
"""

import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from megatape.nn.remat.shared_input import SharedInput

# Rebuilds a tensor from the arguments saved in its place.
Rebuild = Callable[..., Tensor]


class Recipe(NamedTuple):
    """Function and arguments that compute a tensor in the backward pass: function(*args), cheap and without a graph.

    Attributes:
        function: Function that computes the tensor. It runs outside of modules' hooks, so it must not be a module that ZeRO
            stage 3 shards.
        args: Tensors to save in place of the computed one.
    """

    function: Rebuild
    args: tuple[Tensor, ...]


class Remat:
    """A tensor and its recipe.

    Args:
        x: The tensor. Only its identity is remembered, so its memory can be freed.
        recipe: Recipe for computing x in the backward pass.
        shared_input: x in the backward pass, for all layers that multiply it; by default computed by the recipe.
    """

    def __init__(self, x: Tensor, recipe: Recipe, shared_input: SharedInput | None = None) -> None:
        self.recipe = recipe
        self.shared_input = shared_input or SharedInput(recipe.function)
        self._memory = weakref.ref(x.untyped_storage())
        self._shape = x.shape
        self._version = _version(x)

    def matching(self, x: Tensor) -> "Remat | None":
        """Return this Remat if x is the tensor that it rebuilds, unchanged; otherwise None.

        Hooks of ZeRO stage 3 wrap x in a new tensor with the same memory. Users' hooks may change x.
        """
        if torch.compiler.is_compiling():
            return None
        same_memory = self._memory() is x.untyped_storage() and self._shape == x.shape
        if same_memory and self._version == _version(x):
            return self
        return None


def _version(x: Tensor) -> int:
    """Return autograd's counter of in-place changes, 0 if x has none."""
    if x.is_inference():
        return 0
    return x._version


def identity(x: Tensor) -> Tensor:
    """Return x: the function in the recipe of a tensor that is saved itself."""
    return x


def recipe_of(x: Tensor, remat: Remat | None) -> Recipe:
    """Return the recipe in `remat` if it is that of x, or else the recipe of saving x itself."""
    matching = None if remat is None else remat.matching(x)
    if matching is None:
        return Recipe(identity, (x.detach(),))
    return matching.recipe
