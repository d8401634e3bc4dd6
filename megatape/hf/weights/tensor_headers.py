"""Reads the headers of tensors in a transformers folder: model.safetensors, or several files and their index."""

from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from megatape.errors import MissingPath, UserError, content_errors
from megatape.utils.files.json_files import read_json
from megatape.utils.files.paths import FileName
from megatape.utils.values.validation import as_type

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADVICE = "export the checkpoint again, or copy the folder again"


class TensorHeader(NamedTuple):
    """Location, shape and precision of a tensor.

    Attributes:
        path: File that contains the tensor.
        shape: Shape of the tensor.
        dtype: Name of the precision in safetensors, such as BF16.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: str


def tensor_headers(folder: Path) -> dict[str, TensorHeader]:
    """Read the header of every tensor in model.safetensors, or in the files listed in the index.

    Args:
        folder: Model folder.

    Returns:
        Name in the files -> header.

    Raises:
        FileNotFoundError: A file is missing.
        UserError: A file is truncated, two files contain the same tensor, or the index contradicts the files.
    """
    index = _read_index(folder)
    headers: dict[str, TensorHeader] = {}
    for file in _weight_files(folder, index):
        path = folder / file
        for name, header in _read_headers(path).items():
            if name in headers:
                raise UserError(f"{folder}: tensor {name} is in {headers[name].path.name} and in {file}: {ADVICE}")
            if index is not None and index.get(name) != file:
                raise UserError(f"{path}: holds tensor {name}, which {INDEX} has in {index.get(name, 'no file')}: {ADVICE}")
            headers[name] = header

    if index is not None:
        missing = sorted(index.keys() - headers.keys())
        if missing:
            raise UserError(f"{folder / index[missing[0]]}: no tensor {missing[0]}, which {INDEX} has there: {ADVICE}")
    return headers


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        FileNotFoundError: The file is missing.
        UserError: The file does not contain a JSON object.
    """
    with content_errors(f"{path}: no JSON object", ADVICE):
        return as_type(read_json(path), dict[str, Any])


def _read_index(folder: Path) -> dict[str, str] | None:
    """Read the index: tensor -> file name. Returns None if there is no index."""
    path = folder / INDEX
    if not path.is_file():
        return None
    weight_map = read_object(path).get("weight_map")
    with content_errors(f"{path}: no weight_map of tensors and files", ADVICE):
        return as_type(weight_map, dict[str, FileName])


def _weight_files(folder: Path, index: dict[str, str] | None) -> list[str]:
    """Return the names of the weight files, after checking that they exist."""
    if index is None:
        if not (folder / SINGLE).is_file():
            raise MissingPath(f"{folder}: no {SINGLE}: {ADVICE}")
        return [SINGLE]
    names = sorted(set(index.values()))
    if SINGLE not in names and (folder / SINGLE).exists():
        raise UserError(f"{folder} holds {SINGLE} and {INDEX}, which does not list it: remove one of them")
    for name in names:
        if not (folder / name).is_file():
            raise MissingPath(f"{folder}: no {name}, which {INDEX} lists: {ADVICE}")
    return names


def _read_headers(path: Path) -> dict[str, TensorHeader]:
    """Read the header of every tensor in a safetensors file."""
    headers = {}
    with content_errors(f"{path}: not a safetensors file", ADVICE, SafetensorError), safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (the file is not a mapping)
            tensor = file.get_slice(name)
            headers[name] = TensorHeader(path, tuple(tensor.get_shape()), tensor.get_dtype())
    return headers
