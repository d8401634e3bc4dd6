"""Muon: momentum orthogonalized by Newton and Schulz's iteration (https://kellerjordan.github.io/posts/muon/).

The arithmetic is that of torch.optim.Muon with adjust_lr_fn="match_rms_adamw", the scale by which AdamW's learning rate and
weight decay carry over (https://arxiv.org/abs/2502.16982).
"""

from typing import Any

import torch
from torch import Tensor

from megatape.optim.adamw import adamw
from megatape.optim.matrices import MatrixOptimizer
from megatape.optim.muon_options import ITERATIONS, MuonOptions
from megatape.optim.optimizer import Group

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of X, X X^T X and (X X^T)^2 X
EPS = 1e-7
RMS = 0.2  # of an update's elements, as AdamW's usually have


class Muon(MatrixOptimizer):
    """Muon for whole matrices, AdamW for the other weights.

    Args:
        groups: parameter groups, see optimizer.parameter_groups.
        options: its section of the configuration.
    """

    def __init__(self, groups: list[Group], options: MuonOptions) -> None:
        super().__init__(groups, {})
        self.options = options
        self.others = adamw(groups, options)

    def update_matrix(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        """See MatrixOptimizer."""
        momentum = self.options.momentum
        average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        precision = torch.bfloat16 if gradient.is_cuda else torch.float32
        update = orthogonalize(gradient.lerp(average, momentum), precision)
        return update.float() * (RMS * max(gradient.shape) ** 0.5)

    def update_others(self, group: dict[str, Any]) -> None:
        """See MatrixOptimizer."""
        self.others.param_groups = [self.others.defaults | group]
        self.others.state = self.state
        self.others.step()


def orthogonalize(matrix: Tensor, precision: torch.dtype) -> Tensor:
    """A matrix with the singular vectors of `matrix` and singular values near 1 (0.7 to 1.2), or near 0 where they were.

    Args:
        matrix: [rows, columns].
        precision: in which it is computed and returned.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if is_tall else matrix).to(precision)
    x = x / x.norm().clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
