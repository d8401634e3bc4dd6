"""Reads the weights in transformers folders, by MegaTAPE's parameter names."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open

from megatape.checkpoint.format.records import FileRecord, TensorRecord
from megatape.checkpoint.format.stored_weights import StoredWeights
from megatape.config import ModelConfig
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import MissingPath, UserError
from megatape.hf.dtypes import SAFETENSORS_DTYPES
from megatape.hf.weights.model_weights import ModelWeights, Shapes, parameter_shapes
from megatape.hf.weights.tensor_headers import ADVICE, TensorHeader, tensor_headers

if TYPE_CHECKING:
    # Importing transformers takes seconds, and every rank of a run that starts from an import reads this module.
    from megatape.hf.families.family import Family

# Suffix of constants that earlier versions of transformers stored with the weights.
CONSTANT_SUFFIX = "rotary_emb.inv_freq"
# Number of rows to compare at once.
COMPARED_ROWS = 4096


class FolderWeights(StoredWeights, ModelWeights):
    """Weights of the model in a transformers folder.

    Args:
        folder: Model folder.
        model: Model section.
        dtype: Precision of the weights, float32 if it varies.
        tensors: Parameter -> location of its weight.
        files: File name -> size and hash, None if hashes are not recorded.
    """

    def __init__(
        self,
        folder: Path,
        model: ModelConfig,
        dtype: torch.dtype,
        tensors: Mapping[str, TensorRecord],
        files: Mapping[str, FileRecord] | None = None,
    ) -> None:
        super().__init__(folder, tensors, files or {})
        self._model = model
        self._dtype = dtype

    @property
    def model(self) -> ModelConfig:
        """Model section."""
        return self._model

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights, float32 if it varies."""
        return self._dtype

    def shapes(self) -> Shapes:
        """Return the shape of every parameter."""
        return {name: record.shape for name, record in self.tensors.items()}

    def stored(self) -> StoredWeights:
        """Return weight files and the location of each weight: this object."""
        return self

    def tokenizer(self) -> Tokenizer:
        """Open the tokenizer in the folder. Raises FileNotFoundError or UserError if it is missing or corrupted."""
        return load_tokenizer(self.directory)

    def verify(self, share: int = 0, num_shares: int = 1) -> None:
        """Verify the hashes of every `num_shares`-th file, starting with file `share`.

        Raises:
            FileNotFoundError: A file is missing.
            UserError: A file has changed since its hash was recorded.
        """
        for name in self.files:
            if not (self.directory / name).is_file():
                raise MissingPath(
                    f"{self.directory / name}: missing, but this folder was imported: put it back, or import it again"
                )
        for path, expected, actual in self.hashed(share, num_shares):
            if actual != expected:
                raise UserError(f"{path} has changed since it was imported: restore it, or import the folder again")


def find_weights(folder: Path, model: ModelConfig, family: "Family") -> FolderWeights:
    """Find the weight of every parameter in a model folder.

    Only headers are read. There is one exception: if the output matrix is tied to the embedding but stored as well, the two are
    compared.

    Args:
        folder: Model folder.
        model: Model section.
        family: Model family, which knows the parameter names in the files.

    Returns:
        The weights by our parameter names. They are read when they are used.

    Raises:
        FileNotFoundError: A file is missing.
        UserError: A tensor is missing, has the wrong shape, is quantized, or belongs to no parameter.
    """
    headers = _supported_headers(folder)
    tensors = {}
    for name, shape in parameter_shapes(model).items():
        tensors[name] = _locate(family.parameter_name(name), shape, headers, folder)

    unused = headers.keys() - {record.name for record in tensors.values()}
    if model.tie_embeddings:
        head = family.parameter_name("head.weight")
        if head in unused:
            _check_equal(headers, head, family.parameter_name("embedding.weight"))
            unused.discard(head)
    if unused:
        name = min(unused)
        raise UserError(f"{headers[name].path}: tensor {name} belongs to no parameter of the model: {ADVICE}")

    dtypes = {SAFETENSORS_DTYPES[header.dtype] for header in headers.values()}
    dtype = torch.float32
    if len(dtypes) == 1:
        dtype = dtypes.pop()
    return FolderWeights(folder, model, dtype, tensors)


def _supported_headers(folder: Path) -> dict[str, TensorHeader]:
    """Read the headers of all tensors except constants. Raises UserError if a tensor is quantized."""
    headers = {}
    for name, header in tensor_headers(folder).items():
        if name.endswith(CONSTANT_SUFFIX):
            continue
        if header.dtype not in SAFETENSORS_DTYPES:
            raise UserError(
                f"{header.path}: tensor {name} is stored as {header.dtype}; only {', '.join(SAFETENSORS_DTYPES)} are "
                "supported: take the model's unquantized folder"
            )
        headers[name] = header
    return headers


def _locate(name: str, shape: tuple[int, ...], headers: Mapping[str, TensorHeader], folder: Path) -> TensorRecord:
    """Return the location of a parameter by its name in the files. Raises UserError if it is missing or its shape differs."""
    if name not in headers:
        raise UserError(f"{folder}: no tensor {name} in its safetensors files, but config.json asks for it: {ADVICE}")
    header = headers[name]
    if header.shape != shape:
        raise UserError(f"{header.path}: tensor {name} has shape {header.shape}, by config.json it is {shape}: {ADVICE}")
    return TensorRecord(file=header.path.name, name=name, shape=shape)


def _check_equal(headers: Mapping[str, TensorHeader], name: str, other: str) -> None:
    """Raise UserError if two tensors differ. Only COMPARED_ROWS rows are in memory at once."""
    path = headers[name].path
    other_path = headers[other].path
    with safe_open(path, framework="pt") as file, safe_open(other_path, framework="pt") as other_file:
        tensor = file.get_slice(name)
        other_tensor = other_file.get_slice(other)
        is_equal = tensor.get_shape() == other_tensor.get_shape()
        num_rows = tensor.get_shape()[0]
        for start in range(0, num_rows, COMPARED_ROWS):
            rows = slice(start, start + COMPARED_ROWS)
            is_equal = is_equal and torch.equal(tensor[rows], other_tensor[rows])
    if not is_equal:
        raise UserError(f"{path}: {name} differs from {other}, though config.json says tie_word_embeddings: correct one")
