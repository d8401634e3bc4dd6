"""Batch of samples, as tensors.

Dimensions: b sequences per micro-batch, N tokens per sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatape.data.training.dataset import TrainingSample
from megatape.nn.targets import target_mask


@dataclass
class Batch:
    """Samples of one forward pass, as int64 tensors.

    Attributes:
        tokens: Input ids, [b, N].
        targets: The next token of each token, [b, N], or IGNORE_INDEX.
        position_ids: Position of each token (positions.py), [b, N]. A single row in memory if all samples have the same.
        document_starts: Index in the sample of the first token of each token's document, [b, N]. None without document mask.
        dropout_seeds: Random number of each training sample, which depends on the number of samples before it, [b]. None
            without dropout.
    """

    tokens: Tensor
    targets: Tensor
    position_ids: Tensor
    document_starts: Tensor | None
    dropout_seeds: Tensor | None = None

    @property
    def num_targets(self) -> int:
        """Number of targets that count in the loss."""
        return int(target_mask(self.targets.numpy()).sum())

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with each tensor changed. A single row in memory remains a single row."""
        tensors: dict[str, Any] = {}
        for name, tensor in vars(self).items():
            if tensor is None:
                tensors[name] = None
            elif tensor.stride(0) == 0:
                tensors[name] = change(tensor[:1]).expand_as(tensor)
            else:
                tensors[name] = change(tensor)
        return Batch(**tensors)


def make_batch(samples: Sequence[TrainingSample], positions: np.ndarray) -> Batch:
    """Make a batch of samples.

    Args:
        samples: b samples of N tokens.
        positions: Positions of the tokens of a sample or, with document starts, of each document, [b, N], or [1, N] if all
            samples have the same.
    """
    document_starts = None
    starts = [sample.document_starts for sample in samples if sample.document_starts is not None]
    if starts:
        stacked = np.stack(starts)
        document_starts = torch.from_numpy(stacked)
        # Positions begin anew in each document.
        index_in_document = np.arange(stacked.shape[1]) - stacked
        positions = np.take_along_axis(np.broadcast_to(positions, stacked.shape), index_in_document, axis=1)
        if (positions == positions[0]).all():
            positions = positions[:1]

    tokens = torch.from_numpy(np.stack([sample.tokens for sample in samples]))
    targets = torch.from_numpy(np.stack([sample.targets for sample in samples]))
    position_ids = torch.from_numpy(positions).expand_as(tokens)
    return Batch(tokens, targets, position_ids, document_starts)
