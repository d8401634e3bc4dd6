"""Blocks whose norms, MLP and position update torch.compile fuses."""

import torch

from megatape.model.transformer import Transformer


def compile_blocks(model: Transformer) -> None:
    """Compile what a block does before and after attention, which has kernels of its own, when a training step first needs it.

    Blocks of the same shapes share what is compiled. Raises ValueError if there is no C++ compiler."""
    # Here, because the compiler takes seconds to import.
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise ValueError(
            "training.compile needs a C++ compiler, and this machine has none: install g++, name another one by CXX, or set it to "
            "false"
        ) from None
    for block in model.blocks:
        # A graph that breaks would be slower than none: it is an error instead.
        block.attention_norm.compile(fullgraph=True, dynamic=False)
        block.compiled = torch.compile(block._finish, fullgraph=True, dynamic=False)
