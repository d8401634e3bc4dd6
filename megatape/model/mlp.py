"""The feed-forward network of a block. Shapes as in model/block.py."""

import torch.nn.functional as F
from torch import Tensor, nn

from megatape.parallel.collectives import gather_tokens, gathered_again
from megatape.parallel.layers import ColumnLinear, RowLinear
from megatape.parallel.mesh import SINGLE, Axis


class MLP(nn.Module):
    """SwiGLU feed-forward, W_down (silu(W_gate h) * W_up h), [B, N/T, C] -> [B, N/T, C]."""

    def __init__(self, hidden_size: int, inner_size: int, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.axis = axis
        self.gate = ColumnLinear(hidden_size, inner_size, axis)
        self.up = ColumnLinear(hidden_size, inner_size, axis)
        self.down = RowLinear(inner_size, hidden_size, axis)
        self.input_weights = [self.gate.weight, self.up.weight]  # held for the same reason as in Attention

    def forward(self, h: Tensor) -> Tensor:
        whole = gather_tokens(h, self.axis)
        with gathered_again(h, whole, self.input_weights, self.axis):
            gate, up = self.gate(whole), self.up(whole)
        return self.down(F.silu(gate) * up)
