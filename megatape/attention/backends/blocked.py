"""Attention by blocks of query rows in plain PyTorch: the backend supporting every encoding on every device.

The computation is in attention/blocked/. Shapes as in model/transformer.py.
"""

from dataclasses import replace

import torch
from torch import Tensor

from megatape.attention.backend import AttentionRequirements, Backend, DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.blocked.function import BlockedAttention
from megatape.attention.blocked.row_blocks import BLOCK, RowBlocks
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.distributed.mesh import SINGLE, Axis


class Blocked(Backend):
    """Attention by blocks of query rows, computing in float32 for arguments of any dtype.

    The only backend for several context-parallel ranks, where it supports no bias. Its time and memory grow with the window.

    Args:
        context_axis: Context-parallel ranks splitting each sample.
        min_block_rows: Minimum number of query rows per block.
    """

    has_windows = True

    def __init__(self, context_axis: Axis = SINGLE, min_block_rows: int = BLOCK) -> None:
        self.row_blocks = RowBlocks(context_axis, min_block_rows)

    def unsupported_reason(self, requirements: AttentionRequirements) -> str | None:
        return None

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: DocumentStarts,
        averages_state: bool,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if not averages_state:
            q, k = rotate_qk(q, k, state)
            state = None
        initial, delta = state or (None, None)
        weights = () if bias is None else bias.weights
        if torch.compiler.is_compiling():
            # torch.compile takes no tensor twice, and CoPE's weights include the queries.
            weights = tuple(weight.view_as(weight) for weight in weights)
        row_blocks = replace(self.row_blocks, window=window)
        return BlockedAttention.apply(q, k, v, initial, delta, document_starts, row_blocks, bias, *weights)
