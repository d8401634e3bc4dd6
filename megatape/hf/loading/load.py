"""Loads trained models from any kind of model folder.

Models run in installed classes (installed_model.py), unless the user trusts the code in their folder.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from megatape.checkpoint.load.reader import verified_checkpoint
from megatape.config import ModelConfig
from megatape.errors import MissingPath, UserError, path_errors
from megatape.hf.adapters.merge import merge_adapter
from megatape.hf.exporting.exporter import export
from megatape.hf.loading.exact_tokenizer import read_tokenizer
from megatape.hf.loading.installed_model import read_model
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.hf.model_folder import FolderKind, open_model_folder

# Files of an exported model in addition to its weights.
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


@path_errors()
def load_exported(folder: Path, trust_remote_code: bool = False) -> LoadedModel:
    """Load a model from an export or another transformers folder, on the GPU if there is one. Nothing is downloaded.

    Args:
        folder: Model folder.
        trust_remote_code: Whether to load the model with transformers, running the Python files in the folder.

    Raises:
        FileNotFoundError, UserError: A file is missing or not supported, or a tensor is missing, unexpected or not finite.
    """
    for file in FILES:
        if not (folder / file).is_file():
            raise MissingPath(f"{folder}: no {file}: give a folder that `megatape export` wrote")
    model: Any
    tokenizer: Any
    if trust_remote_code:
        model = _load_remote_model(folder)
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=True, local_files_only=True, split_special_tokens=True
        )
    else:
        model = read_model(folder)
        tokenizer = read_tokenizer(folder)

    num_tokens = len(tokenizer)
    vocab_size = model.config.vocab_size
    if num_tokens > vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {num_tokens} tokens, the model only {vocab_size}: copy both from the same export"
        )
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    return LoadedModel(str(folder), model.to(device).eval(), tokenizer, folder)


def _load_remote_model(folder: Path) -> Any:
    """Load a model with transformers, running the code in its folder."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    model, info = loaded
    for kind in ("missing_keys", "unexpected_keys"):
        names = sorted(info[kind])
        if names:
            keys = kind.replace("_", " ")
            raise UserError(f"{folder}: {keys} in its weights: {', '.join(names[:3])}: copy the folder again")
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise UserError(f"{folder}: tensor {name} has values that are NaN or infinite: copy the folder again")
    return model


@contextmanager
def load_trained(
    folder: Path,
    model: ModelConfig | None = None,
    trust_remote_code: bool = False,
    base: Path | None = None,
    adapter: Path | None = None,
) -> Iterator[LoadedModel]:
    """Load a model from any kind of model folder, verifying all recorded file hashes.

    A checkpoint is exported to a temporary folder first. For an import, the model that it refers to is loaded.

    Args:
        folder: Model folder.
        model: Model section that replaces the checkpoint's, e.g. to scale RoPE frequencies. The weights must fit.
        trust_remote_code: See `load_exported`.
        base: New folder of a checkpoint's frozen base model, if it has moved.
        adapter: Exported adapter to merge into the model, see `merge_adapter`.

    Yields:
        The loaded model. Its temporary folder is removed at the end of the block.

    Raises:
        FileNotFoundError, UserError: A file is missing, corrupted or not supported.
    """
    with TemporaryDirectory() as temporary:
        files = _transformers_folder(folder, base, model, Path(temporary))
        name = str(folder)
        if adapter is not None:
            name = f"{folder} with {adapter}"
            merged = Path(temporary) / "merged"
            merge_adapter(adapter, files, merged)
            files = merged
        loaded = load_exported(files, trust_remote_code)
        yield replace(loaded, name=name)


def _transformers_folder(folder: Path, base: Path | None, model: ModelConfig | None, temporary: Path) -> Path:
    """Return a verified transformers folder with the model. A checkpoint is exported below `temporary`."""
    opened = open_model_folder(folder, base)
    if opened.kind is FolderKind.CHECKPOINT:
        checkpoint = verified_checkpoint(folder, base)
        exported = temporary / f"export_{checkpoint.step}"
        export(checkpoint, exported, model=model)
        return exported
    if opened.kind is FolderKind.IMPORT:
        opened.weights().verify()
    return opened.files
