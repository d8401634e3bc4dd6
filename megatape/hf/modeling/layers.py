"""Layers of a model that hold no position encoding: norm and feed-forward network."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .configuration_tape import TapeConfig


class TapeRMSNorm(nn.Module):
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight, computed in float32 and returned in the dtype of x."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normalized = F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps)
        return normalized.to(x.dtype)


class TapeMLP(nn.Module):
    """SwiGLU feed-forward network."""

    def __init__(self, config: TapeConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        gate = F.silu(self.gate_proj(h))
        return self.down_proj(gate.mul_(self.up_proj(h)))
