"""The feed-forward network of a block. Shapes as in model/transformer.py."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from megatape.parallel.linear import ColumnLinear, RowLinear
from megatape.parallel.mesh import SINGLE, Axis
from megatape.parallel.overlap import begin_gather


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return F.silu(gate) * up


class MLP(nn.Module):
    """SwiGLU feed-forward, W_down (silu(W_gate h) * W_up h), [B, N/T, C] -> [B, N/T, C].

    Attributes:
        activation: `swiglu`; model/build.py lets the backward pass compute it again.
    """

    def __init__(self, hidden_size: int, inner_size: int, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.axis = axis
        self.activation: Callable[[Tensor, Tensor], Tensor] = swiglu
        self.gate = ColumnLinear(hidden_size, inner_size, axis)
        self.up = ColumnLinear(hidden_size, inner_size, axis)
        self.down = RowLinear(inner_size, hidden_size, axis)

    def forward(self, h: Tensor) -> Tensor:
        h = begin_gather(h, self.axis)
        gate, up = self.gate(h), self.up(h)
        del h  # all tokens, which only the products need
        out: Tensor = self.down(self.activation(gate, up))
        return out
