"""Muon: momentum orthogonalized by the Newton-Schulz iteration.

A step with gradient G, learning rate η and weight decay λ updates a matrix W [m, n]:

    M ← μ M + (1 - μ) G
    N = μ M + (1 - μ) G                                 Nesterov momentum
    X = N / ||N||, then five times X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X
    W ← (1 - η λ) W - η · 0.2 · sqrt(max(m, n)) · X

Momentum and iteration follow Jordan et al. (https://kellerjordan.github.io/posts/muon/), the last line Liu et al.
(https://arxiv.org/abs/2502.16982, section 2.2): with its scaling, AdamW's learning rate and weight decay carry over. Results
match torch.optim.Muon with adjust_lr_fn="match_rms_adamw".
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from megatape.optim.adamw import adamw
from megatape.optim.matrices import MatrixOptimizer
from megatape.optim.muon_options import ITERATIONS, MuonOptions
from megatape.optim.optimizer import Group

# Coefficients a, b and c of the iteration.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)

# Smallest norm that a matrix is divided by.
EPS = 1e-7

# Root mean square of an update's elements, typical of AdamW's updates.
RMS = 0.2


class Muon(MatrixOptimizer):
    """Muon for groups of whole matrices, AdamW for all other groups.

    Args:
        groups: Parameter groups, see optimizer.parameter_groups.
        options: Section `optimizer` of the configuration.
    """

    def __init__(self, groups: list[Group], options: MuonOptions) -> None:
        super().__init__(groups, {})
        self.options = options
        # One AdamW per group, because DeepSpeed updates one group at a time. Each shares its group with this optimizer, so it
        # sees the flat shards that DeepSpeed puts there, and it shares the optimizer state, which checkpoints read here.
        self._adamw: dict[int, torch.optim.Optimizer] = {}
        for group in self.param_groups:
            if not group["whole"]:
                self._adamw[id(group)] = _adamw_sharing(group, self.state, options)

    def update_matrix(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        """Return the orthogonalized and scaled momentum of a matrix, see MatrixOptimizer."""
        mu = self.options.momentum
        # M ← μ M + (1 - μ) G, and N = μ M + (1 - μ) G with the new M.
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - mu)
        nesterov = gradient.lerp(momentum, mu)
        dtype = torch.bfloat16 if gradient.is_cuda else torch.float32
        update = orthogonalize(nesterov, dtype)
        return update.float() * (RMS * max(gradient.shape) ** 0.5)

    def update_others(self, group: dict[str, Any]) -> None:
        """Update a group without whole matrices by AdamW."""
        self._adamw[id(group)].step()


def _adamw_sharing(group: Group, state: defaultdict[Tensor, Any], options: MuonOptions) -> torch.optim.Optimizer:
    """Return an AdamW for one group that keeps its state in `state`, which another optimizer has, too."""
    optimizer = adamw([group], options)
    optimizer.state = state
    return optimizer


def orthogonalize(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Move all singular values of a matrix close to 1 (0.7 to 1.2), keeping its singular vectors. Values near 0 stay there.

    Args:
        matrix: Matrix [rows, columns].
        dtype: Dtype of the computation and the result.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x.to(dtype)
    x = x / x.norm().clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        # X ← a X + (b X Xᵀ + c (X Xᵀ)²) X
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    if is_tall:
        return x.T
    return x
