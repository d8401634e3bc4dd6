"""The tensors of a folder of transformers under our names, read by rows and columns."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open

from megatape.checkpoint.weights import FileRecord, StoredWeights, TensorRecord
from megatape.config import ModelConfig
from megatape.errors import MissingPath, UserError
from megatape.hf.stored import stored_tensors
from megatape.model.accounting import meta_model

if TYPE_CHECKING:  # with transformers, which takes seconds to import: every rank of a run that begins with an import reads here
    from megatape.hf.architecture import Architecture

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
# Constants that earlier versions of transformers stored beside the weights.
_CONSTANT = "rotary_emb.inv_freq"
_ROWS = 4096  # compared at a time


class FolderWeights(StoredWeights):
    """The weights of a model in a folder of transformers. model: whose weights they are."""

    def __init__(
        self, folder: Path, model: ModelConfig, tensors: dict[str, TensorRecord], files: dict[str, FileRecord] | None = None
    ) -> None:
        super().__init__(folder, tensors, files or {})
        self.model = model

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every parameter, under our names."""
        return {name: record.shape for name, record in self.tensors.items()}

    def stored(self) -> StoredWeights:
        """Where they are."""
        return self

    def verify(self, share: int = 0, shares: int = 1) -> None:
        """Hash every `shares`-th file, beginning with number `share`.

        Raises UserError or FileNotFoundError for one that is not what it was when its hash was recorded.
        """
        for name in self.files:
            if not (self.directory / name).is_file():
                raise MissingPath(
                    f"{self.directory / name}: missing, but this folder was imported: put it back, or import it again"
                )
        for path, expected, found in self.hashed(share, shares):
            if found != expected:
                raise UserError(f"{path} has changed since it was imported: restore it, or import the folder again")


def find_weights(folder: Path, found: "Architecture") -> tuple[FolderWeights, str]:
    """The weights of the model in `folder` and the precision in which they are stored, float32 if it is not one for all.

    Every tensor must belong to one parameter and have its shape. Only headers are read, except where a tied output matrix is
    stored all the same: then it must equal the embedding. Raises UserError naming the tensor at fault.
    """
    stored = {name: entry for name, entry in stored_tensors(folder).items() if not name.endswith(_CONSTANT)}
    for name, entry in stored.items():
        if entry.dtype not in DTYPES:
            raise UserError(
                f"{entry.path}: tensor {name} is stored as {entry.dtype}; only {', '.join(DTYPES)} are supported: take the "
                "model's unquantized folder"
            )
    tensors, unused = {}, set(stored)
    for ours, parameter in meta_model(found.model).named_parameters():
        name = found.family.parameter_name(ours)
        if name not in stored:
            raise UserError(f"{folder}: no tensor {name} in its safetensors files, but config.json asks for it")
        if stored[name].shape != tuple(parameter.shape):
            raise UserError(
                f"{stored[name].path}: tensor {name} has shape {stored[name].shape}, by config.json it is "
                f"{tuple(parameter.shape)}"
            )
        tensors[ours] = TensorRecord(file=stored[name].path.name, name=name, shape=stored[name].shape)
        unused.discard(name)
    head, embedding = (found.family.parameter_name(name) for name in ("head.weight", "embedding.weight"))
    if found.model.tie_embeddings and head in unused:
        _check_equal(stored[head].path, head, stored[embedding].path, embedding)
        unused.discard(head)
    if unused:
        name = min(unused)
        raise UserError(f"{stored[name].path}: tensor {name} belongs to no parameter that config.json asks for")
    dtypes = {DTYPES[entry.dtype] for entry in stored.values()}
    return FolderWeights(folder, found.model, tensors), dtypes.pop() if len(dtypes) == 1 else "float32"


def _check_equal(path: Path, name: str, other_path: Path, other: str) -> None:
    with safe_open(path, framework="pt") as file, safe_open(other_path, framework="pt") as other_file:
        ours, theirs = file.get_slice(name), other_file.get_slice(other)
        same = ours.get_shape() == theirs.get_shape()
        starts = range(0, ours.get_shape()[0], _ROWS)
        if not same or not all(torch.equal(ours[row : row + _ROWS], theirs[row : row + _ROWS]) for row in starts):
            raise UserError(f"{path}: {name} differs from {other}, though config.json says tie_word_embeddings: correct one")
