"""Provenance recorded with every evaluation: hashes of the model and the examples, versions of the software."""

import hashlib
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from megatape.checkpoint.manifest import MANIFEST, describe
from megatape.errors import MissingPath
from megatape.runtime.software import source_hash, versions

FILES = ("*.json", "*.safetensors", "*.model")  # of a folder without a manifest, those that determine a model's answers


def model_hash(folder: Path) -> str:
    """The sha256 of a model's folder.

    It is that of a checkpoint's manifest, which has those of its files, or of the names and hashes of the files with
    configuration, weights and tokenizer.

    Raises:
        MissingPath: There are none.
    """
    manifest = folder / MANIFEST
    paths = [manifest] if manifest.is_file() else sorted(path for pattern in FILES for path in folder.glob(pattern))
    if not paths:
        raise MissingPath(f"{folder}: no such model: give a checkpoint, or a folder that `megatape export` wrote")
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {describe(path)['sha256']}\n".encode())
    return digest.hexdigest()


def examples_hash(batches: list[list[Any]]) -> str:
    """The sha256 of all examples as JSON, so of the data that they were made from; without fields that are not compared."""
    digest = hashlib.sha256()
    for batch in batches:
        options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
        digest.update(orjson.dumps(batch, default=_plain, option=options))
    return digest.hexdigest()


def software() -> dict[str, str]:
    """Versions of the software that computes the results; of MegaTAPE the hash of its code."""
    return {"megatape": source_hash(), "python/torch/deepspeed": versions(), "transformers": version("transformers")}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
    return str(value)
