"""Distributes a checkpoint's tensors over files."""

from collections.abc import Collection
from typing import NamedTuple

import torch

from megatape.zero.state.interfaces import TensorSource

# Approximate size of a tensor file, and of a rank's buffer.
FILE_BYTES = 2**30
BYTES_PER_ELEMENT = 4


class TensorFile(NamedTuple):
    """Tensor file in a checkpoint.

    Attributes:
        kind: Tensor kind.
        name: File name.
        parameters: Names of parameters with a tensor in the file.
    """

    kind: str
    name: str
    parameters: list[str]


def plan_files(tensors: TensorSource, left_out: Collection[str], file_bytes: int = FILE_BYTES) -> list[TensorFile]:
    """Distribute tensors over files, all kinds of tensors in the same way.

    Args:
        tensors: Tensors to write.
        left_out: Parameters to leave out.
        file_bytes: Maximum file size. Only a single larger tensor exceeds it.
    """
    parameters = [name for name in tensors.parameters if name not in left_out]
    files = []
    for number, group in enumerate(_group_by_size(parameters, tensors, file_bytes)):
        for kind, names in tensors.names_by_kind.items():
            present = [name for name in group if name in names]
            if present:
                files.append(TensorFile(kind, f"{kind}-{number:05d}.safetensors", present))
    return files


def _group_by_size(parameters: list[str], tensors: TensorSource, file_bytes: int) -> list[list[str]]:
    """Split parameters, in order, into groups up to `file_bytes`. A larger parameter gets its own group."""
    groups: list[list[str]] = []
    free_bytes = 0
    for name in parameters:
        size = BYTES_PER_ELEMENT * torch.Size(tensors.shape(name)).numel()
        if size > free_bytes:
            groups.append([])
            free_bytes = file_bytes
        groups[-1].append(name)
        free_bytes -= size
    return groups
