"""Blocks whose weights ZeRO stage 3 gathers together, because a compiled block cannot contain hooks."""

from collections.abc import Callable

import torch
from torch import Tensor

from megatape.attention.rotation import PositionState
from megatape.model.block import Block, Streams
from megatape.nn.gathered_unit import GatheredUnit


class GatheredBlock(Block, GatheredUnit):
    """Block whose call passes the streams' tensors as arguments of their own, where hooks find them."""

    def __call__(self, streams: Streams, document_starts: Tensor | None = None) -> Streams:
        call: Callable[..., Streams] = super().__call__
        if not torch.is_grad_enabled():
            return call(streams, document_starts)
        x, (initial, delta), _ = streams
        if not x.requires_grad and any(weight.requires_grad for weight in self.parameters()):
            # DeepSpeed reduces the gradients of the weights once x has its gradient.
            x = x.detach().requires_grad_()
        without_gradient = Streams(x.detach(), PositionState(initial, None))
        return call(without_gradient, document_starts, x, delta)

    def forward(
        self,
        streams: Streams,
        document_starts: Tensor | None = None,
        x: Tensor | None = None,
        delta: Tensor | None = None,
    ) -> Streams:
        """Return both streams after this block.

        Args:
            streams: Streams before it.
            document_starts: See Block.
            x: Content before it, or None if `streams` has it.
            delta: Sum of the state's updates before it, or None.
        """
        if x is not None:
            streams = Streams(x, streams.state._replace(delta=delta))
        return super().forward(streams, document_starts)
