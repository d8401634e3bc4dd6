"""Exact checksums of tensors."""

import torch
from torch import Tensor

# Bytes of an element -> integers of that size.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor) -> Tensor:
    """Sum the elements with their bits read as integers, int64 []. The sum is exact, and changing one element changes it."""
    integers = tensor.detach().view(INTEGERS[tensor.element_size()])
    return integers.sum(dtype=torch.int64)
