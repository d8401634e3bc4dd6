"""Root mean square normalization (Zhang and Sennrich, arXiv 1910.07467). Shapes as in model/transformer.py."""

import torch.nn.functional as F
from torch import Tensor, nn

from megatape.parallel.mesh import SINGLE, Axis
from megatape.parallel.parameters import parameter


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32, returned in the dtype of x. weight: [size]."""

    def __init__(self, size: int, eps: float, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter((size,), axis, init=1.0)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.float()
        return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)
