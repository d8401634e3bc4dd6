"""Activation checkpointing: autograd saves only a function's arguments, and the backward pass runs the function again.

`in_chunks` does so for one chunk of tokens after another. `keep_on_host` saves the arguments in host memory.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import repeat
from typing import TypeVar, TypeVarTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from megatape.nn.forward_context import context_for_recomputation, forward_context
from megatape.utils.pytorch.torch_internals import storage_id

Args = TypeVarTuple("Args")
Result = TypeVar("Result")
# Each is a tensor with tokens in dimension 1, or None.
Outputs = TypeVarTuple("Outputs")


def recompute(function: Callable[[*Args], Result], *args: *Args) -> Result:
    """Return function(*args). Autograd saves only the arguments, and the backward pass runs the function again.

    The second run sees the context variables of the first one, such as the samples of dropout.
    """
    if torch.compiler.is_compiling():
        # torch.compile cannot trace contexts. Only dropout and Remats need them, and compiled blocks have neither.
        result: Result = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
        return result
    if not torch.is_grad_enabled() or forward_context().saves_everything:
        return function(*args)
    context = context_for_recomputation()

    def run(*args: *Args) -> Result:
        return context.run(function, *args)

    result = checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False)
    return result


def in_chunks(function: Callable[..., tuple[*Outputs]], size: int, *args: Tensor | None) -> tuple[*Outputs]:
    """Return function(*args), computed by `recompute` for one chunk of tokens after another.

    Args:
        function: Function whose result for a token depends on this token alone.
        size: Tokens per chunk and rank.
        args: Tensors [B, N/T, ...] or, with the tokens of all T ranks, [B, N, ...], or None. The first one is [B, N/T, ...]. A
            chunk of a tensor [B, N, ...] has the same tokens of each rank.

    Returns:
        The function's outputs for all tokens.
    """
    assert args[0] is not None
    length = args[0].shape[1]

    def chunks(arg: Tensor | None) -> Iterable[Tensor | None]:
        if arg is None:
            return repeat(None)
        by_rank = arg.unflatten(1, (-1, length))
        return [chunk.flatten(1, 2) for chunk in by_rank.split(size, dim=2)]

    outputs = [recompute(function, *chunk) for chunk in zip(*map(chunks, args), strict=False)]
    joined: list[Tensor | None] = []
    for parts in zip(*outputs, strict=True):
        if parts[0] is None:
            joined.append(None)
        else:
            joined.append(torch.cat(parts, dim=1))
    return cast(tuple[*Outputs], tuple(joined))


def keep_on_host(*tensors: Tensor | None) -> AbstractContextManager[None]:
    """Return a context inside which autograd saves these tensors in host memory. On a CPU it saves copies.

    Copies run in the compute stream. With another stream, the device memory would stay in use until the copy ends.
    """
    chosen = {storage_id(tensor) for tensor in tensors if tensor is not None}

    def pack(saved: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        if storage_id(saved) not in chosen:
            return saved
        # Tensors on a CPU or on the meta device stay there.
        device = "cpu" if saved.is_cuda else None
        host = torch.empty_like(saved, device=device, pin_memory=saved.is_cuda)
        return saved.device, host.copy_(saved, non_blocking=True)

    def unpack(packed: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        device, host = packed
        return host.to(device, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
