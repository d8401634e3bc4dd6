"""Feed-forward network of a block, computed by one rank. Shapes as in model/transformer.py."""

import torch.nn.functional as F
from torch import Tensor, nn

from megatape.config import ModelConfig
from megatape.model.layers import LayerFactory
from megatape.model.options import ModelOptions
from megatape.nn.linear import project


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return F.silu(gate) * up


class MLP(nn.Module):
    """SwiGLU feed-forward network, W_down (silu(W_gate h) * W_up h), [B, N/T, D] -> [B, N/T, D]."""

    def __init__(self, config: ModelConfig, options: ModelOptions, layers: LayerFactory) -> None:
        super().__init__()
        self.tensor_axis = options.layout.tensor_axis
        self.gate = layers.column("gate", config.hidden_size, config.mlp_size)
        self.up = layers.column("up", config.hidden_size, config.mlp_size)
        self.down = layers.row("down", config.mlp_size, config.hidden_size)

    def forward(self, h: Tensor) -> Tensor:
        gate, up = project(h, self.gate, self.up)
        return self.multiply(gate, up)

    def multiply(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return W_down (silu(gate) * up)."""
        return self.down(swiglu(gate, up))
