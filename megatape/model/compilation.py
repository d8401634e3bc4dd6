"""Blocks whose norm, MLP and position update torch.compile fuses. Attention has kernels of its own."""

from typing import Any

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding
from megatape.errors import UserError
from megatape.model.block import Block, Content
from megatape.model.options import DEFAULT_OPTIONS, ModelOptions
from megatape.nn.product import linear
from megatape.utils.torch_internals import has_cpp_compiler, limit_recompilations


def prepare_compiler(backend: str) -> None:
    """Check that blocks can be compiled, and let torch compile as many versions as blocks have shapes.

    Args:
        backend: Backend of torch.compile.

    Raises:
        UserError: There is no C++ compiler, which the default backend needs.
    """
    if backend == "inductor" and not has_cpp_compiler():
        raise UserError(
            "training.compile needs a C++ compiler, and this machine has none: install g++, name another one by CXX, or set "
            "training.compile to false"
        )
    limit_recompilations()


def content_after_block(block: Block, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the content after a block: what a CompiledBlock fuses.

    Args:
        block: The block.
        x: Content before it, [B, N/T, D].
        attended: Output of attention, [B, N/T, D].

    Returns:
        The content [B, N/T, D], and the output m of the MLP if the position update reads it.
    """
    content = Block.add_to_content(block, x, attended)
    if not block.updates_state:
        return content.x, None
    return content.x, content.m


class CompiledBlock(Block):
    """A block that compiles what it does before and after attention, once a training step needs it.

    Blocks of the same shapes share what is compiled.
    """

    def __init__(
        self,
        config: ModelConfig,
        encoding: Encoding,
        options: ModelOptions = DEFAULT_OPTIONS,
        index: int = 0,
        is_read: bool = True,
    ) -> None:
        super().__init__(config, encoding, options, index, is_read)
        # A graph that breaks would be slower than none: fullgraph makes it an error.
        compile_options: dict[str, Any] = {"backend": self.options.compiler, "fullgraph": True, "dynamic": False}
        self.attention_norm.compile(**compile_options)
        attention = self.attention
        if self.options.product is not linear:
            # FP8: scaling takes as long as the product unless it is fused.
            for layer in (attention.query, attention.key, attention.value, attention.output):
                layer.compile(**compile_options)
        self._compiled_content = torch.compile(self._content, **compile_options)
        self._compile_update(compile_options)

    def add_to_content(self, x: Tensor, attended: Tensor) -> Content:
        if not self.training:
            # Evaluation has other shapes and cases, and each of them would be compiled.
            return super().add_to_content(x, attended)
        return Content(*self._compiled_content(x, attended))

    def _content(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor | None]:
        return content_after_block(self, x, attended)

    def _compile_update(self, compile_options: dict[str, Any]) -> None:
        """Compile the position update in training, unless our own kernel computes it.

        The kernel multiplies, too, and the compiler fuses only what lies between products. It is for a GPU, where the weights
        may not be yet.
        """
        update = self.position
        if update is None or (update.by_kernel and update.has_kernel(torch.device("cuda"))):
            return
        update.compile_in_training(**compile_options)
