"""Batches: b sequences with N tokens each, as tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatape.data.training.datasets.dataset import SampleRows
from megatape.nn.targets import target_mask


@dataclass
class Batch:
    """Samples for one forward pass, as int64 tensors.

    Attributes:
        tokens: Input ids, [b, N].
        targets: Each token's next token, or IGNORE_INDEX, [b, N].
        position_ids: Position of each token (positions.py), [b, N]. A single row in memory if all samples share it.
        document_starts: First token of each token's document, as an index in the sample, [b, N]. None without document masking.
        dropout_seeds: Each training sample's random number, which depends on how many samples precede it, [b]. None in
            evaluation.
    """

    tokens: Tensor
    targets: Tensor
    position_ids: Tensor
    document_starts: Tensor | None
    dropout_seeds: Tensor | None = None

    @property
    def num_targets(self) -> int:
        """Number of targets counted in the loss."""
        return int(target_mask(self.targets.numpy()).sum())

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with `change` applied to each tensor. A single row in memory remains a single row."""
        tensors: dict[str, Any] = {}
        for name, tensor in vars(self).items():
            if tensor is None:
                tensors[name] = None
            elif tensor.stride(0) == 0:
                tensors[name] = change(tensor[:1]).expand_as(tensor)
            else:
                tensors[name] = change(tensor)
        return Batch(**tensors)

    def inputs_on(self, device: torch.device) -> dict[str, Tensor | None]:
        """Return the model's keyword arguments on a device, without waiting for the copy."""
        return vars(self.mapped(lambda tensor: tensor.to(device, non_blocking=True)))


def make_batch(samples: SampleRows, positions: np.ndarray) -> Batch:
    """Make a batch of samples, sharing their memory.

    Args:
        samples: b samples of N tokens.
        positions: Token positions in a sample, or with document starts in each document, [b, N]; [1, N] if all
            samples share them.
    """
    document_starts = None
    if samples.document_starts is not None:
        document_starts = torch.from_numpy(samples.document_starts)
        positions = _positions_in_documents(samples.document_starts, positions)
    tokens = torch.from_numpy(samples.tokens)
    position_ids = torch.from_numpy(positions).expand_as(tokens)
    return Batch(tokens, torch.from_numpy(samples.targets), position_ids, document_starts)


def _positions_in_documents(document_starts: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return positions that restart in each document, int64 [b, N]; [1, N] if all samples share them."""
    indices = np.arange(document_starts.shape[1])
    positions_in_documents = indices - document_starts
    if len(positions) > 1 or not np.array_equal(positions[0], indices):
        all_positions = np.broadcast_to(positions, document_starts.shape)
        positions_in_documents = np.take_along_axis(all_positions, positions_in_documents, axis=1)
    first = positions_in_documents[0]
    if all(np.array_equal(row, first) for row in positions_in_documents[1:]):
        return positions_in_documents[:1]
    return positions_in_documents
