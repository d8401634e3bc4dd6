"""The attention of a block. Shapes as in model/transformer.py."""

import torch
from torch import Tensor, nn

from megatape.attention.backend import Need
from megatape.attention.operation import attend, attend_and_move
from megatape.attention.shifted import ShiftedSparse
from megatape.config import Config, ModelConfig
from megatape.model.encodings import encoding_of
from megatape.model.encodings.encoding import Encoding
from megatape.model.norm import RMSNorm
from megatape.parallel.layers import ColumnLinear, RowLinear, column_parallel
from megatape.parallel.layout import divide_by_channels
from megatape.parallel.mesh import SINGLE, Axis
from megatape.registry import AUTO


class Attention(nn.Module):
    """Grouped-query attention; the position encoding rotates queries and keys, biases scores or
    lets attention move its state."""

    def __init__(self, config: ModelConfig, encoding: Encoding, axis: Axis = SINGLE, backend: str = AUTO) -> None:
        super().__init__()
        self.head_dim, self.encoding, self.axis, self.backend = config.head_dim, encoding, axis, backend
        inputs, outputs = config.attention_bias != "none", config.attention_bias == "qkvo"
        self.query = ColumnLinear(config.hidden_size, config.num_heads * config.head_dim, axis, inputs)
        self.key = ColumnLinear(config.hidden_size, config.num_kv_heads * config.head_dim, axis, inputs)
        self.value = ColumnLinear(config.hidden_size, config.num_kv_heads * config.head_dim, axis, inputs)
        self.output = RowLinear(config.num_heads * config.head_dim, config.hidden_size, axis, outputs)
        self.query_norm = RMSNorm(config.head_dim, config.norm_eps, axis) if config.qk_norm else None
        self.key_norm = RMSNorm(config.head_dim, config.norm_eps, axis) if config.qk_norm else None
        self.bias = encoding.bias(axis)
        self.sparse: ShiftedSparse | None = None  # in training only; model/shifted.py sets it

    def forward(
        self, h: Tensor, e: Tensor | None, document_starts: Tensor | None, move: bool, dropout_seeds: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the output [B, N/T, C] and, if attention moves the state, A e of this rank's query heads [B, N, H/T, W].

        h: [B, N/T, C]; e: the encoding's state, [B, N/T, L, W] if blocks change it; document_starts: [B, N],
        the first token that each token may see, or None; move: whether anything reads the moved state;
        dropout_seeds: [B] or None, as in model/transformer.py."""
        q, k, v = self.heads(h, dropout_seeds)
        if e is not None and self.encoding.carries_state:
            e = divide_by_channels(e, self.axis)
        attended_positions = None
        if e is not None and move and self.encoding.attends == "moving":
            content, attended_positions = attend_and_move(q, k, v, e, document_starts, self.backend)
        else:
            q, k = self.encoding.rotate_qk(q, k, e)
            if self.training and self.sparse is not None:
                content = self.sparse.attend(q, k, v, document_starts, self.backend)
            else:
                bias = None if self.bias is None else self.bias.scores(self.bias(q), e)
                content = attend(q, k, v, bias, document_starts, self.backend)
        return self.output(content.flatten(2), dropout_seeds), attended_positions

    def heads(self, h: Tensor, dropout_seeds: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, N, H/T, R], keys and values [B, N, L/T, R] before they are rotated, from h [B, N/T, C]."""
        projected = column_parallel(h, self.query, self.key, self.value, dropout_seeds=dropout_seeds)
        q, k, v = (layer.unflatten(-1, (-1, self.head_dim)) for layer in projected)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        return q, k, v


def attention_need(config: Config, device_type: str) -> Need:
    """What a configuration's encoding needs from attention on this type of device."""
    attends = encoding_of(config.model).attends
    dtype = getattr(torch, config.training.precision)
    return Need(device_type, attends, config.model.head_dim, dtype, config.data.mask_documents)
