"""Blocks whose norms, MLP and position update torch.compile fuses."""

from collections.abc import Callable

import torch
from torch import Tensor

from megatape.errors import UserError
from megatape.model.block import Block, Parts
from megatape.model.transformer import Transformer


def compile_blocks(model: Transformer, backend: str = "inductor") -> None:
    """Compile what a block does before and after attention, which has kernels of its own, once a training step needs it.

    Blocks of the same shapes share what is compiled. backend: of torch.compile. Raises UserError if there is no C++ compiler,
    which the default one needs."""
    if backend == "inductor":
        _check_compiler()
    for block in (module for module in model.blocks if isinstance(module, Block)):
        # A graph that breaks would be slower than none: that is an error instead.
        block.attention_norm.compile(backend=backend, fullgraph=True, dynamic=False)
        attention = block.attention
        if attention.output.fp8 is not None:  # whose scaling takes as long as the product unless it is fused
            for layer in (attention.query, attention.key, attention.value, attention.output):
                layer.compile(backend=backend, fullgraph=True, dynamic=False)
        feed_forward = torch.compile(block.feed_forward, backend=backend, fullgraph=True, dynamic=False)
        # Our own kernel multiplies, too, and the compiler fuses only what lies between products. It is for a GPU, where the
        # weights may not be yet.
        update = block.position
        position: Callable[..., Tensor] | None = update
        if update is not None and not (update.by_kernel and update.has_kernel(torch.device("cuda"))):
            position = torch.compile(update, backend=backend, fullgraph=True, dynamic=False)
        block.compiled = Parts(feed_forward, position)


def _check_compiler() -> None:
    # Here, because the compiler takes seconds to import.
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UserError(
            "training.compile needs a C++ compiler, and this machine has none: install g++, name another one by CXX, or set "
            "training.compile to false"
        ) from None
