"""What an evaluation must say of the model and the software, so that somebody else can repeat it."""

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from megatape.checkpoint.manifest import MANIFEST, describe
from megatape.errors import MissingPath
from megatape.runtime.software import source_hash, versions

FILES = ("*.json", "*.safetensors", "*.model")  # of a folder without a manifest, those that decide what a model answers


def model_hash(folder: Path) -> str:
    """sha256 of a model's folder.

    Of a checkpoint's manifest, which has those of its files, or of the names and hashes of the files with configuration,
    weights and tokenizer.

    Raises FileNotFoundError if there are none.
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
    """sha256 of all examples as JSON, so of the data that they were made from."""
    digest = hashlib.sha256()
    for batch in batches:
        digest.update(orjson.dumps(batch, default=str, option=orjson.OPT_SERIALIZE_NUMPY))
    return digest.hexdigest()


def software() -> dict[str, str]:
    """Versions of what computes the results; of MegaTAPE the hash of its code."""
    return {"megatape": source_hash(), "python/torch/deepspeed": versions(), "transformers": version("transformers")}
