"""Optimizers that update whole matrices, for example by their singular vectors, although every rank holds only a part."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Computes the update of a matrix from its gradient, its optimizer state, and its parameter group.
ComputeUpdate = Callable[[Tensor, dict[str, Tensor], dict[str, Any]], Tensor]

# Decays each matrix of a parameter group by `lr` times `weight_decay`, and subtracts `lr` times its update. One rank computes
# the update of a matrix. Collective (zero/matrices.py).
UpdateMatrices = Callable[[dict[str, Any], ComputeUpdate], None]


class MatrixOptimizer(torch.optim.Optimizer, ABC):
    """Base class of optimizers that update matrices as a whole, and other weights (vectors, embeddings) in another way.

    The registry's entry names the function that returns the shapes of a matrix's state.
    """

    @abstractmethod
    def update_matrix(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        """Return the update of a matrix, to be multiplied by the learning rate. Changes `state` in place.

        Args:
            gradient: Gradient of the whole matrix, float32 [rows, columns].
            state: Optimizer state of the matrix, in the shapes of the registry's entry.
            group: Hyperparameters.
        """

    @abstractmethod
    def update_others(self, group: dict[str, Any]) -> None:
        """Update the weights of a group without matrices, element by element, with their state in `self.state`."""

    @torch.no_grad()
    def step(self, update_matrices: UpdateMatrices) -> None:  # type: ignore[override]
        """Update the weights of all groups. Collective.

        Args:
            update_matrices: Updates the matrices of a group, gathering each from the ranks that hold its parts.
        """
        for group in self.param_groups:
            if group["whole"]:
                update_matrices(group, self.update_matrix)
            else:
                self.update_others(group)
