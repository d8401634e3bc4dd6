"""Base class of optimizers that update whole matrices (such as Muon), although each rank holds only a shard of a matrix."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Computes a matrix's update from its gradient, its optimizer state and its parameter group.
ComputeUpdate = Callable[[Tensor, dict[str, Tensor], dict[str, Any]], Tensor]

# Updates all matrices in a parameter group: decays each by `lr` times `weight_decay`, and subtracts `lr` times its update. One
# rank computes the update of a matrix. Collective (zero/update/whole_matrices.py).
UpdateMatrices = Callable[[dict[str, Any], ComputeUpdate], None]


class MatrixOptimizer(torch.optim.Optimizer, ABC):
    """Base class of optimizers that update matrices as a whole, and other weights (vectors, embeddings) element by element.

    The optimizer's registry entry names the function returning the shapes of a matrix's state.
    """

    @abstractmethod
    def update_matrix(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        """Return the update of a matrix, before multiplying by the learning rate. Changes `state` in place.

        Args:
            gradient: Gradient of the whole matrix, float32 [rows, columns].
            state: Optimizer state of the matrix, with the shapes in the registry entry.
            group: Parameter group, for its hyperparameters.
        """

    @abstractmethod
    def update_others(self, group: dict[str, Any]) -> None:
        """Update a group without whole matrices, element by element. The state of its parameters is in `self.state`."""

    @torch.no_grad()
    def step(self, update_matrices: UpdateMatrices) -> None:  # type: ignore[override]
        """Update all groups in `param_groups`, which DeepSpeed may narrow to one of them. Collective.

        Args:
            update_matrices: Updates the matrices in a group, gathering each from the ranks holding its shards.
        """
        for group in self.param_groups:
            if group["whole"]:
                update_matrices(group, self.update_matrix)
            else:
                self.update_others(group)
