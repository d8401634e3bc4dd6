"""Blocks whose norms, MLP and position update torch.compile fuses."""

import torch
from torch import nn

from megatape.errors import UserError
from megatape.model.block import Block
from megatape.model.transformer import Transformer
from megatape.parallel.remat import linear
from megatape.torch_internals import has_cpp_compiler


def compile_blocks(model: Transformer, backend: str = "inductor") -> None:
    """Compile what a block does before and after attention, which has kernels of its own, once a training step needs it.

    Blocks of the same shapes share what is compiled. backend: of torch.compile. Raises UserError if there is no C++ compiler,
    which the default one needs.
    """
    if backend == "inductor":
        _check_compiler()
    for block in model.blocks:
        assert isinstance(block, Block)
        # A graph that breaks would be slower than none: that is an error instead.
        block.attention_norm.compile(backend=backend, fullgraph=True, dynamic=False)
        attention, update = block.attention, block.position
        if attention.output.product is not linear:  # FP8, whose scaling takes as long as the product unless it is fused
            for layer in (attention.query, attention.key, attention.value, attention.output):
                layer.compile(backend=backend, fullgraph=True, dynamic=False)
        _compile_in_training(block, "feed_forward", backend)
        # Our own kernel multiplies, too, and the compiler fuses only what lies between products. It is for a GPU, where the
        # weights may not be yet.
        if update is not None and not (update.by_kernel and update.has_kernel(torch.device("cuda"))):
            _compile_in_training(update, "forward", backend)


def _compile_in_training(module: nn.Module, method: str, backend: str) -> None:
    """In training only, because evaluation has other shapes and cases, each of which would be compiled."""
    plain = getattr(module, method)
    compiled = torch.compile(plain, backend=backend, fullgraph=True, dynamic=False)
    setattr(module, method, lambda *args: (compiled if module.training else plain)(*args))


def _check_compiler() -> None:
    if not has_cpp_compiler():
        raise UserError(
            "training.compile needs a C++ compiler, and this machine has none: install g++, name another one by CXX, or set "
            "training.compile to false"
        )
