"""Plain layers without automatic initialization: model/init.py draws every parameter from its own name."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatape.config import ModelConfig


class Linear(nn.Module):
    """y = x W^T without bias. weight: [out_features, in_features]."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Embedding(nn.Module):
    """Rows of a table. weight: [vocab_size, hidden_size]."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32, returned in the dtype of x. weight: [size]."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


class MLP(nn.Module):
    """SwiGLU feed-forward: W_down (silu(W_gate h) * W_up h)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Linear(config.hidden_size, config.mlp_size)
        self.up = Linear(config.hidden_size, config.mlp_size)
        self.down = Linear(config.mlp_size, config.hidden_size)

    def forward(self, h: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(h)) * self.up(h))
