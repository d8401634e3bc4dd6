"""Weights in the safetensors files of a folder, under our names: what an import refers to, and the base of a checkpoint."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from megatape.checkpoint.manifest import FileRecord, TensorRecord, describe
from megatape.errors import UserError


class StoredWeights:
    """Weights of a model in a folder.

    tensors: by our names. files: the hashes that they must have, empty if none were recorded.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, TensorRecord], files: Mapping[str, FileRecord]) -> None:
        self.directory, self.tensors, self.files = folder, tensors, files

    def restricted(self, names: Iterable[str]) -> "StoredWeights":
        """These weights only, and the hashes of the files that hold them."""
        tensors = {name: self.tensors[name] for name in names}
        used = {record.file for record in tensors.values()}
        return StoredWeights(self.directory, tensors, {name: record for name, record in self.files.items() if name in used})

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """The given rows and columns of a weight in float32; a vector is a matrix of one column.

        The file is open for this tensor only: pages of its mapping that were read would count as this process's memory.
        """
        record = self.tensors[name]
        path = self.directory / record.file
        with safe_open(path, framework="pt") as file:
            part = file.get_slice(record.name)
            block: Tensor = part[rows, columns] if len(shape) == 2 else part[rows][:, None]
            block = block.to(torch.float32)
        if not torch.isfinite(block).all():
            raise UserError(f"{path}: tensor {record.name} has values that are NaN or infinite: copy the folder again")
        return block

    def tensor(self, name: str) -> Tensor:
        """A whole weight in float32."""
        shape = self.tensors[name].shape
        return self.read("weight", name, shape, slice(0, shape[0]), slice(0, shape[1] if len(shape) > 1 else 1)).view(shape)

    def hashed(self, share: int, shares: int) -> Iterator[tuple[Path, FileRecord, FileRecord]]:
        """Every `shares`-th file, beginning with number `share`: its path, what it should be, and what it is.

        Raises FileNotFoundError for a missing one.
        """
        for name in sorted(self.files)[share::shares]:
            path = self.directory / name
            yield path, self.files[name], FileRecord(**describe(path))
