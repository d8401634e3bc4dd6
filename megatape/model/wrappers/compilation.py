"""Blocks compiled by torch.compile, as one graph or in two parts."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from megatape.attention.attend import select_for_call
from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding
from megatape.errors import UserError
from megatape.model.block import Block, Streams
from megatape.model.options import DEFAULT_OPTIONS, ModelOptions
from megatape.nn.kernels.launch import has_kernels
from megatape.nn.linear_function import linear
from megatape.utils.pytorch.torch_internals import has_cpp_compiler, limit_recompilations


def prepare_compiler(backend: str) -> None:
    """Check that torch.compile works, and prepare it for blocks: as many versions as they have shapes, each one graph.

    Raises:
        UserError: The backend is inductor, and its C++ compiler is missing.
    """
    if backend == "inductor" and not has_cpp_compiler():
        raise UserError(
            "training.compile needs a C++ compiler, and this machine has none: install g++, name another one by CXX, or set "
            "training.compile to false"
        )
    limit_recompilations()
    for function in (select_for_call, has_kernels):
        # Their results are constants of a graph, because torch.compile cannot trace looking up and importing modules.
        torch.compiler.assume_constant_result(function)


def reason_for_parts(options: ModelOptions) -> str | None:
    """Return the reason why a block is not one graph, or None if it is. docs/kernels.md lists the parts."""
    if options.training.chunk_tokens is not None:
        return "the MLP takes some tokens at a time"
    return None


class CompiledBlock(Block):
    """Block that torch.compile turns into one graph in training, during its first step.

    Attention, rotation and position update by kernels are operators of the graph (utils/pytorch/operators.py), and so are
    exchanges between ranks. Everything else is fused between them and the matrix products. Blocks with the same shapes share
    the compiled code.
    """

    def forward(self, streams: Streams, document_starts: Tensor | None = None) -> Streams:
        if not self.training:
            # Evaluation has other shapes and cases, and each of them would be compiled.
            return super().forward(streams, document_starts)
        return self._compiled_forward(streams, document_starts)

    @cached_property
    def _compiled_forward(self) -> Callable[[Streams, Tensor | None], Streams]:
        compiled: Callable[[Streams, Tensor | None], Streams] = torch.compile(super().forward, **_compile_options(self.options))
        return compiled


class PartlyCompiledBlock(Block):
    """Block compiled in two parts, where `reason_for_parts` has one: the norm before attention, and all that follows it.

    Wrappers run the second part for some tokens at a time.
    """

    def __init__(
        self,
        config: ModelConfig,
        encoding: Encoding,
        options: ModelOptions = DEFAULT_OPTIONS,
        index: int = 0,
        is_read: bool = True,
        window: int | None = None,
    ) -> None:
        super().__init__(config, encoding, options, index, is_read, window)
        compile_options = _compile_options(options)
        self.attention_norm.compile(**compile_options)
        attention = self.attention
        if options.kernels.linear_function is not linear:
            # Scaling to FP8 takes as long as the matmul, unless both are fused.
            for layer in (attention.query, attention.key, attention.value, attention.output):
                layer.compile(**compile_options)
        self._compiled_feed_forward = torch.compile(super().feed_forward, **compile_options)

    def feed_forward(self, streams: Streams, attended: Tensor, attended_state: Tensor | None) -> Streams:
        if not self.training:
            return super().feed_forward(streams, attended, attended_state)
        after: Streams = self._compiled_feed_forward(streams, attended, attended_state)
        return after


def _compile_options(options: ModelOptions) -> dict[str, Any]:
    """Return the arguments of torch.compile. A broken graph would be slower than eager code, so fullgraph makes it an error."""
    return {"backend": options.kernels.compiler, "fullgraph": True, "dynamic": False}
