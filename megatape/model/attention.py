"""The attention of a block. Shapes as in model/transformer.py."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from megatape.attention.backend import Need, Sizes
from megatape.attention.operation import Backends, attend, attend_and_move, attend_rotated
from megatape.attention.rotation import rotated
from megatape.attention.shifted import ShiftedSparse
from megatape.config import Config, ModelConfig
from megatape.model.encodings import encoding_of
from megatape.model.encodings.encoding import Encoding
from megatape.model.norm import RMSNorm
from megatape.parallel.layers import ColumnLinear, RowLinear, column_parallel
from megatape.parallel.layout import divide_by_channels
from megatape.parallel.mesh import SINGLE, Axis
from megatape.parallel.overlap import Exchange
from megatape.parallel.recompute import Origin


class Attention(nn.Module):
    """Grouped-query attention; the position encoding rotates queries and keys, biases scores or
    lets attention move its state."""

    def __init__(self, config: ModelConfig, encoding: Encoding, axis: Axis = SINGLE, backends: Backends | None = None) -> None:
        super().__init__()
        self.head_dim, self.encoding, self.axis, self.backends = config.head_dim, encoding, axis, backends
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
        self,
        h: Tensor,
        state: Tensor | None,
        moved: Tensor | None,
        document_starts: Tensor | None,
        move: bool,
        dropout_seeds: Tensor | None = None,
        origin: Origin | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the output [B, N/T, C] and, if attention moves the state, A e of this rank's query heads [B, N, H/T, W].

        h: [B, N/T, C]; state, moved: as Encoding.state and StateUpdate have them, or None; document_starts: [B, N],
        the first token that each token may see, or None; move: whether anything reads the moved state;
        dropout_seeds: [B] or None, as in model/transformer.py; origin: of h, if the backward pass computes norms again."""
        exchange = None if moved is None else divide_by_channels(moved, self.axis)
        q, k, v = self.heads(h, dropout_seeds, exchange, origin)
        moved = None if exchange is None else exchange.finish()
        attended_positions = None
        if state is not None and move and self.encoding.attends == "moving":
            content, attended_positions = attend_and_move(q, k, v, state, moved, document_starts, self.backends)
        elif self.training and self.sparse is not None:
            content = self.sparse.attend(*self.rotate_qk(q, k, state, moved), v, document_starts, self.backends)
        elif state is not None and self.encoding.has_position_tensor:
            content = attend_rotated(q, k, v, state, moved, document_starts, self.backends)
        else:
            q, k = self.encoding.rotate_qk(q, k, state)
            bias = None if self.bias is None else self.bias.scores(self.bias(q), state)
            content = attend(q, k, v, bias, document_starts, self.backends)
        return self.output(content.flatten(2), dropout_seeds), attended_positions

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None, moved: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries [B, N, H/T, R] and keys [B, N, L/T, R] from which scores are computed. moved: of this rank's channels."""
        if state is None or moved is None:
            return self.encoding.rotate_qk(q, k, state)
        return rotated(q, k, state, moved)

    def heads(
        self,
        h: Tensor,
        dropout_seeds: Tensor | None = None,
        beside: Exchange | None = None,
        origin: Origin | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, N, H/T, R], keys and values [B, N, L/T, R] before they are rotated, from h [B, N/T, C].

        beside: an exchange that begins here, to run beside the products. origin: as `forward` takes it."""
        projected = column_parallel(
            h, self.query, self.key, self.value, dropout_seeds=dropout_seeds, beside=beside, origin=origin
        )
        q, k, v = (layer.unflatten(-1, (-1, self.head_dim)) for layer in projected)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        return q, k, v


def attention_needs(config: Config, device_type: str) -> tuple[Need, Need]:
    """What a run needs from attention on this type of device: in all layers but the last, and in the last.

    The last layer does not move the state, because nothing reads it."""
    model, attends = config.model, encoding_of(config.model).attends
    dtype = getattr(torch, config.training.precision)
    need = Need(device_type, attends, model.head_dim, dtype, config.data.mask_documents)
    return need, replace(need, attends="plain") if attends == "moving" else need


def layer_sizes(config: Config) -> Sizes:
    """Sizes of a layer of a run on one tensor-parallel rank."""
    model, ranks, encoding = config.model, config.parallel.tp, encoding_of(config.model)
    return Sizes(
        tokens=config.training.micro_batch_size * config.data.sequence_length,
        heads=model.num_heads // ranks,
        channels=model.num_kv_heads // ranks,
        head_dim=model.head_dim,
        state_width=encoding.state_width if encoding.attends == "moving" else 0,
        element_bytes=getattr(torch, config.training.precision).itemsize,
    )
