"""Operations whose results the backward pass rebuilds. Each returns the result and its Remat, or None if that saves nothing."""

import torch
from torch import Tensor

from megatape.nn.forward_context import forward_context
from megatape.nn.remat.recompute import recompute
from megatape.nn.remat.remat import Rebuild, Recipe, Remat


def saves_memory() -> bool:
    """Whether a Remat would save memory now.

    False without a backward pass, inside `recompute`, and while compiling, because torch.compile decides alone what to save.
    """
    return torch.is_grad_enabled() and not torch.compiler.is_compiling() and not forward_context().is_recomputed


def add_rebuilt(x: Tensor, y: Tensor) -> tuple[Tensor, Remat | None]:
    """Return x + y. It is rebuilt from both, which pays off if other operations save them anyway."""
    total = x + y
    if not saves_memory():
        return total, None
    recipe = Recipe(torch.add, (x.detach(), y.detach()))
    return total, Remat(total, recipe)


def call_rebuilt(function: Rebuild, *args: Tensor) -> tuple[Tensor, Remat | None]:
    """Return function(*args). It is rebuilt from the arguments, and autograd saves only them for its gradient, too."""
    if not saves_memory():
        return function(*args), None
    output: Tensor = recompute(function, *args)
    recipe = Recipe(function, tuple(arg.detach() for arg in args))
    return output, Remat(output, recipe)
