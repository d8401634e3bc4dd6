"""What a folder of transformers holds: its JSON files, and where each tensor of its safetensors files is."""

from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from megatape.errors import MissingPath, UserError
from megatape.files import is_file_name, read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADVICE = "export the checkpoint again, or copy the folder again"


class TensorHeader(NamedTuple):
    """Where a tensor is; dtype as safetensors names it, such as BF16."""

    path: Path
    shape: tuple[int, ...]
    dtype: str


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FileNotFoundError, or UserError if it is none."""
    try:
        found = read_json(path)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}): {ADVICE}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: not a JSON object: {ADVICE}")
    return found


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
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise UserError(f"{path}: no weight_map of tensors and files: {ADVICE}")
    for name in listed.values():
        if not is_file_name(name):
            raise UserError(f"{path}: {name!r} is not a plain file name: {ADVICE}")
    return listed


def _headers(path: Path) -> dict[str, TensorHeader]:
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            return {name: TensorHeader(path, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error}): {ADVICE}") from None
