"""The feed-forward network of a block. Shapes as in model/transformer.py."""

import torch.nn.functional as F
from torch import Tensor, nn

from megatape.parallel.layers import ColumnLinear, RowLinear, column_parallel
from megatape.parallel.mesh import SINGLE, Axis


class MLP(nn.Module):
    """SwiGLU feed-forward, W_down (silu(W_gate h) * W_up h), [B, N/T, C] -> [B, N/T, C]."""

    def __init__(self, hidden_size: int, inner_size: int, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.gate = ColumnLinear(hidden_size, inner_size, axis)
        self.up = ColumnLinear(hidden_size, inner_size, axis)
        self.down = RowLinear(inner_size, hidden_size, axis)

    def forward(self, h: Tensor, dropout_seeds: Tensor | None = None) -> Tensor:
        gate, up = column_parallel(h, self.gate, self.up, dropout_seeds=dropout_seeds)
        return self.down(F.silu(gate) * up, dropout_seeds)
