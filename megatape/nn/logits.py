"""Soft-cap and padding of logits, shared by the loss and the output head. Shapes as in model/transformer.py."""

import torch
from torch import Tensor

from megatape.distributed.mesh import Axis


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Squash logits smoothly into (-cap, cap): cap tanh(logits / cap)."""
    return cap * torch.tanh(logits / cap)


def num_valid_rows(num_rows: int, vocab_size: int, axis: Axis) -> int:
    """Return how many of this rank's vocabulary rows are not padding. The result may exceed `num_rows`."""
    return max(vocab_size - axis.rank * num_rows, 0)


def mask_padding(logits: Tensor, vocab_size: int, axis: Axis) -> Tensor:
    """Set the logits of padding rows to minus infinity, [..., ceil(V / T)]. All of a rank's rows may be padding."""
    num_rows = logits.shape[-1]
    num_valid = num_valid_rows(num_rows, vocab_size, axis)
    if num_valid >= num_rows:
        return logits
    padding = torch.arange(num_valid, num_rows, device=logits.device)
    return logits.index_fill(-1, padding, float("-inf"))
