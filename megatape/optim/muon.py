"""Muon: momentum orthogonalized by Newton and Schulz's iteration.

A step changes a matrix W [m, n] with gradient G, learning rate η and weight decay λ as follows:

    M ← μ M + (1 - μ) G
    N = μ M + (1 - μ) G                                 Nesterov's momentum
    X = N / ||N||, then five times X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X
    W ← (1 - η λ) W - η · 0.2 · sqrt(max(m, n)) · X

Momentum and iteration are those of Jordan et al. (https://kellerjordan.github.io/posts/muon/). The last line is that of Liu et
al. (https://arxiv.org/abs/2502.16982): by this scale, AdamW's learning rate and weight decay carry over. The
arithmetic is that of torch.optim.Muon with adjust_lr_fn="match_rms_adamw".
"""

from typing import Any

import torch
from torch import Tensor

from megatape.optim.adamw import adamw
from megatape.optim.matrices import MatrixOptimizer
from megatape.optim.muon_options import ITERATIONS, MuonOptions
from megatape.optim.optimizer import Group

# Coefficients a, b and c of the iteration.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)

# Minimum norm by which a matrix is divided.
EPS = 1e-7

# Root mean square of an update's elements, the usual value of AdamW's updates.
RMS = 0.2


class Muon(MatrixOptimizer):
    """Muon for whole matrices, AdamW for the other weights.

    Args:
        groups: Parameter groups, see optimizer.parameter_groups.
        options: Section `optimizer` of the configuration.
    """

    def __init__(self, groups: list[Group], options: MuonOptions) -> None:
        super().__init__(groups, {})
        self.options = options
        self.others = adamw(groups, options)

    def update_matrix(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        """Return the orthogonalized momentum of a matrix, scaled. See MatrixOptimizer."""
        mu = self.options.momentum
        # M ← μ M + (1 - μ) G, and N = μ M + (1 - μ) G with the new M.
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - mu)
        nesterov = gradient.lerp(momentum, mu)
        precision = torch.float32
        if gradient.is_cuda:
            precision = torch.bfloat16
        update = orthogonalize(nesterov, precision)
        return update.float() * (RMS * max(gradient.shape) ** 0.5)

    def update_others(self, group: dict[str, Any]) -> None:
        """Update the other weights of a group by AdamW."""
        self.others.param_groups = [self.others.defaults | group]
        self.others.state = self.state
        self.others.step()


def orthogonalize(matrix: Tensor, precision: torch.dtype) -> Tensor:
    """Return a matrix with the singular vectors of `matrix`, and singular values near 1 (0.7 to 1.2), or near 0 if they were.

    Args:
        matrix: Matrix [rows, columns].
        precision: Type to compute in, and of the result.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix
    if is_tall:
        x = matrix.T
    x = x.to(precision)
    x = x / x.norm().clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        # X ← a X + (b X Xᵀ + c (X Xᵀ)²) X
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    if is_tall:
        return x.T
    return x
