"""Reading weights from safetensors files in any folder, by our parameter names."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from megatape.checkpoint.format.hashed_files import hash_file
from megatape.checkpoint.format.records import FileRecord, TensorRecord
from megatape.errors import UserError
from megatape.zero.state.kinds import WEIGHT


class StoredWeights:
    """Weights stored in a folder, by our parameter names: source of an import, or base of a checkpoint.

    Args:
        folder: Folder with the files.
        tensors: Parameter -> location of its weight.
        files: Name -> expected size and hash, for files that have them on record.

    Attributes:
        directory: Folder with the files.
        tensors, files: See Args.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, TensorRecord], files: Mapping[str, FileRecord]) -> None:
        self.directory = folder
        self.tensors = tensors
        self.files = files

    def restricted(self, names: Iterable[str]) -> "StoredWeights":
        """Return only these weights, with the hashes of their files."""
        tensors = {name: self.tensors[name] for name in names}
        used = {record.file for record in tensors.values()}
        files = {name: record for name, record in self.files.items() if name in used}
        return StoredWeights(self.directory, tensors, files)

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """Read some rows and columns of a weight in float32. A vector has one column.

        Raises:
            UserError: A value is not finite.
        """
        record = self.tensors[name]
        path = self.directory / record.file
        # Close the file after each tensor: pages read through its mapping count as memory of this process.
        with safe_open(path, framework="pt") as file:
            tensor = file.get_slice(record.name)
            block: Tensor
            if len(shape) == 2:
                block = tensor[rows, columns]
            else:
                block = tensor[rows][:, None]
            block = block.to(torch.float32)
        if not torch.isfinite(block).all():
            raise UserError(f"{path}: tensor {record.name} has values that are NaN or infinite: copy the folder again")
        return block

    def tensor(self, name: str) -> Tensor:
        """Read a whole weight in float32. Raises the errors of `read`."""
        shape = self.tensors[name].shape
        num_columns = 1
        if len(shape) > 1:
            num_columns = shape[1]
        return self.read(WEIGHT, name, shape, slice(0, shape[0]), slice(0, num_columns)).view(shape)

    def hashed(self, share: int, num_shares: int) -> Iterator[tuple[Path, FileRecord, FileRecord]]:
        """Hash every `num_shares`-th file, starting with file `share`.

        Yields:
            File path, expected size and hash, present size and hash.

        Raises:
            FileNotFoundError: A file is missing.
        """
        for name in sorted(self.files)[share::num_shares]:
            path = self.directory / name
            yield path, self.files[name], hash_file(path)


def names_in_base(base: StoredWeights | None) -> Collection[str]:
    """Return the parameters that a checkpoint with this base leaves out, none without a base."""
    if base is None:
        return ()
    return base.tensors
