"""Hashes of models and examples, and software versions, recorded with results."""

import hashlib
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from megatape.checkpoint.format.hashed_files import hash_file
from megatape.checkpoint.format.manifest import MANIFEST
from megatape.errors import MissingPath
from megatape.software import source_hash, versions

# Files determining a model's answers, in a folder without a manifest.
MODEL_FILES = ("*.json", "*.safetensors", "*.model")


def model_hash(folder: Path) -> str:
    """Return a model folder's sha256.

    For a checkpoint it covers the manifest, which has the file hashes. For any other folder it covers names and hashes of
    configuration, weights and tokenizer.

    Raises:
        MissingPath: The folder has none of these files.
    """
    manifest = folder / MANIFEST
    paths = [manifest]
    if not manifest.is_file():
        paths = sorted(path for pattern in MODEL_FILES for path in folder.glob(pattern))
    if not paths:
        raise MissingPath(f"{folder}: no such model: give a checkpoint, or a folder that `megatape export` wrote")
    digest = hashlib.sha256()
    for path in paths:
        file_hash = hash_file(path).sha256
        digest.update(f"{path.name} {file_hash}\n".encode())
    return digest.hexdigest()


def examples_hash(batches: list[list[Any]]) -> str:
    """Return the sha256 of all examples as JSON, without fields declared with `compare=False`."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
    digest = hashlib.sha256()
    for batch in batches:
        digest.update(orjson.dumps(batch, default=_plain, option=options))
    return digest.hexdigest()


def software() -> dict[str, str]:
    """Return software versions, and the hash of MegaTAPE's code."""
    return {
        "megatape": source_hash(),
        "python/torch/deepspeed": versions(),
        "transformers": version("transformers"),
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
    return str(value)
