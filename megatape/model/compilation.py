"""Blocks with norm, MLP and position update fused by torch.compile. Attention has its own kernels."""

from typing import Any

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding
from megatape.errors import UserError
from megatape.model.block import Block
from megatape.model.block_in_steps import BlockInSteps, Content
from megatape.model.options import DEFAULT_OPTIONS, ModelOptions
from megatape.nn.product import linear
from megatape.utils.torch_internals import has_cpp_compiler, limit_recompilations


def prepare_compiler(backend: str) -> None:
    """Check that torch.compile works, and let it compile as many versions as blocks have shapes.

    Raises:
        UserError: The backend is inductor, and its C++ compiler is missing.
    """
    if backend == "inductor" and not has_cpp_compiler():
        raise UserError(
            "training.compile needs a C++ compiler, and this machine has none: install g++, name another one by CXX, or set "
            "training.compile to false"
        )
    limit_recompilations()


def content_after_block(block: Block, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor | None]:
    """Compute the part of a block that a CompiledBlock fuses.

    Args:
        block: Block, compiled or not.
        x: Content before the block, [B, N/T, D].
        attended: Output of attention, [B, N/T, D].

    Returns:
        The content [B, N/T, D] after the block, and the MLP's output m if the position update reads it, or None.
    """
    x = x + attended
    m = block.mlp(block.mlp_norm(x))
    if not block.updates_state:
        return x + m, None
    return x + m, m


class CompiledBlock(BlockInSteps):
    """Block compiling everything before and after attention during its first training step.

    Blocks with the same shapes share the compiled code.
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
        # A broken graph would be slower than eager code, so fullgraph makes it an error.
        compile_options: dict[str, Any] = {"backend": self.options.compiler, "fullgraph": True, "dynamic": False}
        self.attention_norm.compile(**compile_options)
        attention = self.attention
        if self.options.product is not linear:
            # Scaling to FP8 takes as long as the product, unless both are fused.
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

        The kernel includes the products, while the compiler only fuses operations between them. The question is whether a GPU
        has the kernel, because weights may not be on it yet.
        """
        update = self.position
        if update is None or (update.by_kernel and update.has_kernel(torch.device("cuda"))):
            return
        update.compile_in_training(**compile_options)
