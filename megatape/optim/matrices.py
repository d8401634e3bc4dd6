"""Optimizers that update a matrix as a whole, such as by its singular vectors, though every rank holds a part of it."""

from abc import abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor

MATRIX = "matrix"  # role of the weights that are updated whole


class Matrices(Protocol):
    """The whole matrices of a run. Each has an owner: the rank that keeps its state and computes its update."""

    def names(self, group: dict[str, Any]) -> list[str]:
        """Matrices of a parameter group that the present call of `step` updates, the same on all ranks."""

    def gradient(self, name: str) -> Tensor | None:
        """The float32 gradient [rows, columns] on the owner, None elsewhere. Collective."""

    def state(self, name: str) -> dict[str, Tensor]:
        """Tensors that the owner keeps for a matrix, zeros at first."""

    def apply(self, name: str, update: Tensor | None, rate: float, decay: float) -> None:
        """Multiply the master weight by 1 - decay and subtract rate * update, which the owner has. Collective."""


class MatrixOptimizer(torch.optim.Optimizer):
    """Base of optimizers that update matrices whole, and other weights (vectors, embeddings) in another way.

    The registry's entry names the function that gives the shapes of the state for a matrix.

    Attributes:
        matrices: set by the engine before the first step.
    """

    matrices: Matrices

    @abstractmethod
    def update_matrix(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        """The update of a matrix, to be multiplied by the learning rate. Changes `state` in place.

        Args:
            gradient: [rows, columns], float32, of the whole matrix.
            state: tensors that are kept for it, in the shapes of the registry's entry.
            group: hyperparameters.
        """

    @abstractmethod
    def update_others(self, group: dict[str, Any]) -> None:
        """Update the weights of a group that are no matrices, element by element, with their state in `self.state`."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights of all groups. Collective."""
        for group in self.param_groups:
            if group["role"] != MATRIX:
                self.update_others(group)
                continue
            for name in self.matrices.names(group):
                gradient = self.matrices.gradient(name)
                update = None if gradient is None else self.update_matrix(gradient, self.matrices.state(name), group)
                self.matrices.apply(name, update, group["lr"], group["lr"] * group["weight_decay"])
