"""The weights in a folder of transformers, read and written.

Where each tensor is, and what it is called in MegaTAPE; reading by rows and columns; writing in shards of limited size, which
huggingface_hub plans. Its save_torch_state_dict is not used: it takes the whole model in memory, this one shard of it.

An import is a folder that refers to such a folder:

    import.json     the folder, its files' hashes, where each of our parameters is in it
    config.json     everything of a run but its data and its steps
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megatape.accounting.counts import meta_model
from megatape.checkpoint.tensors import FileRecord, StoredWeights, TensorRecord, save_tensors
from megatape.config import ModelConfig, Section
from megatape.config.run import Dtype
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import MissingPath, UserError, content_errors
from megatape.utils.files import FileName, as_type, read_json

if TYPE_CHECKING:  # with transformers, which takes seconds to import: every rank of a run that begins with an import reads here
    from megatape.hf.families.family import Family

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADVICE = "export the checkpoint again, or copy the folder again"
SHARD_BYTES = 2 * 2**30  # what the exporting process holds at once


class TensorHeader(NamedTuple):
    """Where a tensor is; dtype as safetensors names it, such as BF16."""

    path: Path
    shape: tuple[int, ...]
    dtype: str


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FileNotFoundError, or UserError if it is none."""
    with content_errors(f"{path}: no JSON object", ADVICE):
        return as_type(read_json(path), dict[str, Any])


def tensor_headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor of model.safetensors, or of the files that its index lists. Only headers are read.

    Raises FileNotFoundError for a missing file, UserError for a file that is truncated, a tensor that two files hold, and an
    index that is wrong about its files.
    """
    index = _index(folder)
    names = [SINGLE] if index is None else sorted(set(index.values()))
    if index is not None and SINGLE not in names and (folder / SINGLE).exists():
        raise UserError(f"{folder} holds {SINGLE} and {INDEX}, which does not list it: remove one of them")
    for name in names:
        if not (folder / name).is_file():
            raise MissingPath(f"{folder}: no {name}{f', which {INDEX} lists' if index else ''}: {ADVICE}")
    found: dict[str, TensorHeader] = {}
    for path in (folder / name for name in names):
        for name, header in _headers(path).items():
            if name in found:
                raise UserError(f"{folder}: tensor {name} is in {found[name].path.name} and in {path.name}: {ADVICE}")
            if index is not None and index.get(name) != path.name:
                raise UserError(f"{path}: holds tensor {name}, which {INDEX} has in {index.get(name, 'no file')}: {ADVICE}")
            found[name] = header
    if index is not None and (missing := sorted(index.keys() - found.keys())):
        raise UserError(f"{folder / index[missing[0]]}: no tensor {missing[0]}, which {INDEX} has there: {ADVICE}")
    return found


def _index(folder: Path) -> dict[str, str] | None:
    """Tensor -> name of its file, None without an index."""
    path = folder / INDEX
    if not path.is_file():
        return None
    listed = read_object(path).get("weight_map")
    with content_errors(f"{path}: no weight_map of tensors and files", ADVICE):
        return as_type(listed, dict[str, FileName])


def _headers(path: Path) -> dict[str, TensorHeader]:
    with content_errors(f"{path}: not a safetensors file", ADVICE, SafetensorError), safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return {name: TensorHeader(path, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}


def write_weights(
    directory: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    read: Callable[[str], Tensor],
    rename: Callable[[str], str],
) -> None:
    """Write model.safetensors, or several shards and their index, as transformers reads them.

    Args:
        directory: an existing folder.
        shapes: of every parameter, by MegaTAPE's names.
        dtype: the precision to store them in.
        read: gives one of them.
        rename: gives its name in the files.

    Raises:
        UserError: if a parameter that was read has another shape, or values beyond the range of `dtype`.
    """
    from huggingface_hub import split_state_dict_into_shards_factory  # training, which reads only, runs without it

    plan = split_state_dict_into_shards_factory(
        {name: math.prod(shape) * dtype.itemsize for name, shape in shapes.items()},
        get_storage_size=int,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=SHARD_BYTES,
    )
    for file, names in plan.filename_to_tensors.items():
        # No name holds the tensors: they are freed before the next shard is read.
        save_tensors({rename(name): checked(name, read(name), shapes[name], dtype) for name in names}, directory / file)
    if plan.is_sharded:
        files = {rename(name): file for name, file in plan.tensor_to_filename.items()}
        text = json.dumps({"metadata": plan.metadata, "weight_map": files}, indent=2)
        (directory / INDEX).write_text(text + "\n", encoding="utf-8")


def checked(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """`tensor` as it is stored. Raises UserError if it has another shape, or values beyond the range of `dtype`."""
    if tensor.shape != shape:
        raise UserError(
            f"{name} has shape {tuple(tensor.shape)} in the checkpoint, but its configuration says {shape}: "
            "the checkpoint is corrupted, use another one"
        )
    stored = tensor.to(dtype).contiguous()
    if not stored.isfinite().all():
        raise UserError(f"{name} has values that {dtype} cannot hold: export with another `dtype`")
    return stored


DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# Constants that earlier versions of transformers stored beside the weights.
_CONSTANT = "rotary_emb.inv_freq"
_ROWS = 4096  # compared at a time
IMPORT = "import.json"


class FolderWeights(StoredWeights):
    """The weights of a model in a folder of transformers.

    Attributes:
        model: whose weights they are.
        dtype: the precision in which they are stored, float32 if it is not one for all.
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
        self.model = model
        self.dtype = dtype

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter."""
        return {name: record.shape for name, record in self.tensors.items()}

    def stored(self) -> StoredWeights:
        """Where they are."""
        return self

    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside them. Raises FileNotFoundError or UserError."""
        return load_tokenizer(self.directory)

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


def find_weights(folder: Path, model: ModelConfig, family: "Family") -> FolderWeights:
    """The weights of the model in `folder`.

    Every tensor must belong to one parameter and have its shape. Only headers are read, except where a tied output matrix is
    stored all the same: then it must equal the embedding. Raises UserError naming the tensor at fault.
    """
    headers = {name: header for name, header in tensor_headers(folder).items() if not name.endswith(_CONSTANT)}
    for name, header in headers.items():
        if header.dtype not in DTYPES:
            raise UserError(
                f"{header.path}: tensor {name} is stored as {header.dtype}; only {', '.join(DTYPES)} are supported: take the "
                "model's unquantized folder"
            )
    tensors = {}
    unused = set(headers)
    for name, parameter in meta_model(model).named_parameters():
        stored_name = family.parameter_name(name)
        if stored_name not in headers:
            raise UserError(
                f"{folder}: no tensor {stored_name} in its safetensors files, but config.json asks for it: {ADVICE}"
            )
        path, shape, _ = headers[stored_name]
        if shape != tuple(parameter.shape):
            raise UserError(
                f"{path}: tensor {stored_name} has shape {shape}, by config.json it is {tuple(parameter.shape)}: {ADVICE}"
            )
        tensors[name] = TensorRecord(file=path.name, name=stored_name, shape=shape)
        unused.discard(stored_name)
    head, embedding = (family.parameter_name(name) for name in ("head.weight", "embedding.weight"))
    if model.tie_embeddings and head in unused:
        _check_equal(headers, head, embedding)
        unused.discard(head)
    if unused:
        name = min(unused)
        raise UserError(f"{headers[name].path}: tensor {name} belongs to no parameter of the model: {ADVICE}")
    dtypes = {DTYPES[header.dtype] for header in headers.values()}
    return FolderWeights(folder, model, dtypes.pop() if len(dtypes) == 1 else torch.float32, tensors)


def _check_equal(headers: dict[str, TensorHeader], name: str, other: str) -> None:
    path = headers[name].path
    with safe_open(path, framework="pt") as file, safe_open(headers[other].path, framework="pt") as other_file:
        head = file.get_slice(name)
        embedding = other_file.get_slice(other)
        same = head.get_shape() == embedding.get_shape()
        starts = range(0, head.get_shape()[0], _ROWS)
        if not same or not all(torch.equal(head[row : row + _ROWS], embedding[row : row + _ROWS]) for row in starts):
            raise UserError(f"{path}: {name} differs from {other}, though config.json says tie_word_embeddings: correct one")


class ImportRecord(Section):
    """import.json. Names of files are those in `source`.

    tokenizer: those of the tokenizer. model: the model section of the model as it is there. difference: of its logits, ours
    against transformers', relative to the largest. hub: id on the Hugging Face hub, if the command downloaded the model.
    """

    format: Literal[1]
    source: str
    family: str
    dtype: Dtype
    difference: float
    tokenizer: list[FileName]
    model: ModelConfig
    files: dict[FileName, FileRecord]
    tensors: dict[str, TensorRecord]
    hub: str = ""


def read_record(directory: Path) -> ImportRecord:
    """The record of the import in `directory`. Raises FileNotFoundError or UserError if it is none."""
    path = directory / IMPORT
    with content_errors(f"{path}: not what `megatape import` writes", "import the model again"):
        return as_type(read_json(path), ImportRecord)


def open_import(directory: Path) -> FolderWeights:
    """The weights that an import refers to. Raises FileNotFoundError if they are gone; their hashes are checked by `verify`."""
    record = read_record(directory)
    source = Path(record.source)
    if not source.is_dir():
        raise MissingPath(
            f"{directory / IMPORT} refers to {source}, which is not there: put it back, or import the model again from where "
            "it is"
        )
    return FolderWeights(source, record.model, getattr(torch, record.dtype), record.tensors, record.files)
