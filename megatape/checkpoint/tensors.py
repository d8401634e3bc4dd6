"""Tensors in safetensors files: writing ours, reading weights of a folder, and the base of a checkpoint.

The base is the folder of weights that a run froze and did not copy: a run that starts from other weights and freezes some of
them leaves these out of its checkpoints. The manifest has, under `base`, where they are and the hashes of their files:

    folder      the folder, as an absolute path
    relative    the same, seen from the checkpoint: it still fits when both were moved together
    files       size and sha256 of every file that holds some of them
    tensors     parameter -> file, name there, shape

The folder holds them itself. A run that starts from a checkpoint with a base has the same base, and stores whatever that
checkpoint holds beyond it; so no checkpoint depends on another one that depends on a third.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from megatape.checkpoint.manifest import BaseRecord, FileRecord, TensorRecord, describe, write_file
from megatape.errors import CheckpointError, UserError

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}
_ADVICE = "put it back, or say where it is now with --base DIR"


def save_tensors(tensors: dict[str, Tensor], path: Path) -> dict[str, Any]:
    """Write a safetensors file of CPU tensors, all of one type; returns what `write_file` does.

    The same bytes as the library's, which can only hash a file by reading it again: whatever became of it meanwhile would count
    as what was written. Format: https://huggingface.co/docs/safetensors, section Format.
    """
    return write_file(path, _parts(dict(sorted(tensors.items()))))


def _parts(tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The content of the file: size of the header, header, tensors. None of them is copied."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin = end
        end = end + tensor.numel() * tensor.itemsize
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors are aligned
    yield len(text).to_bytes(8, "little")
    yield text
    for tensor in tensors.values():
        yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


class StoredWeights:
    """Weights in a folder, under our names: what an import refers to, and the base of a checkpoint.

    tensors: by our names. files: the hashes that they must have, empty if none were recorded.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, TensorRecord], files: Mapping[str, FileRecord]) -> None:
        self.directory = folder
        self.tensors = tensors
        self.files = files

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


class Base(StoredWeights):
    """The base of the checkpoint in `checkpoint`, which is in `folder` now."""

    def __init__(self, record: BaseRecord, folder: Path, checkpoint: Path) -> None:
        super().__init__(folder, record.tensors, record.files)
        self.recorded = record.folder
        self.checkpoint = checkpoint

    def verify(self, share: int, shares: int) -> None:
        """Hash every `shares`-th file, beginning with number `share`. Raises CheckpointError for one that is not the base's."""
        try:
            for path, expected, found in self.hashed(share, shares):
                if found != expected:
                    raise CheckpointError(
                        f"{path} has sha256 {found.sha256[:12]}, but the base of {self.checkpoint}, which was trained with "
                        f"{self.recorded}, has {expected.sha256[:12]} there: restore the file, or give the right folder with "
                        "--base DIR"
                    )
        except FileNotFoundError as error:
            raise CheckpointError(f"{error}, a part of the base of {self.checkpoint}: {_ADVICE}") from None


def describe_base(weights: StoredWeights, checkpoint: Path) -> dict[str, Any]:
    """The entry `base` for a manifest of the checkpoint that is written to `checkpoint`."""
    folder = os.path.abspath(weights.directory)
    relative = os.path.relpath(folder, os.path.abspath(checkpoint))
    record = BaseRecord(folder=folder, relative=relative, files=dict(weights.files), tensors=dict(weights.tensors))
    return record.model_dump(mode="json")


def open_base(record: BaseRecord, checkpoint: Path, override: Path | None) -> Base:
    """The base of the checkpoint in `checkpoint`, in the folder `override` or else where the manifest says it is.

    Raises CheckpointError if the folder, or a file of its recorded size, is not there. `Base.verify` compares the content.
    """
    folder = override or Path(record.folder)
    if override is None and not folder.is_dir() and (checkpoint / record.relative).is_dir():
        folder = Path(os.path.normpath(checkpoint / record.relative))
    if not folder.is_dir():
        raise CheckpointError(
            f"{checkpoint} holds only what was trained. The rest is in its base {record.folder}, and "
            f"{'there' if override is None else f'--base {override}'} is no such folder: {_ADVICE}"
        )
    for name, expected in record.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != expected.bytes:
            raise CheckpointError(
                f"{folder} is not the base of {checkpoint}, which was trained with {record.folder}: {name} "
                f"{'is not there' if size is None else f'has {size} bytes'}, and the base's has {expected.bytes} bytes and "
                f"sha256 {expected.sha256[:12]}: {_ADVICE}"
            )
    return Base(record, folder, checkpoint)
