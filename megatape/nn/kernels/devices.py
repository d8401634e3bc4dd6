"""Sizes of a GPU that launches of our kernels depend on. The meta device stands in for an H100."""

from functools import cache
from typing import Any

import torch

# Maximum shared memory per program, and number of multiprocessors.
H100_SHARED_BYTES = 227 * 1024
H100_MULTIPROCESSORS = 132


@cache
def shared_memory(device: torch.device) -> int:
    """Return the shared memory available to a program, in bytes."""
    if device.type != "cuda":
        return H100_SHARED_BYTES
    # The stub of the properties lacks the field.
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors."""
    if device.type != "cuda":
        return H100_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
