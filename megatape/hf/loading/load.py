"""Loading of trained models from every kind of folder that holds one.

Models run by installed classes (installed_model.py), unless the user trusts the code in their folder.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from megatape.checkpoint.reader import verified_checkpoint
from megatape.config import ModelConfig
from megatape.errors import MissingPath, UserError, path_errors
from megatape.hf.adapters.merge import merge_adapter
from megatape.hf.exporting.exporter import export
from megatape.hf.loading.exact_tokenizer import read_tokenizer
from megatape.hf.loading.installed_model import read_model
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.hf.model_folder import FolderKind, open_model_folder

# Files of a model in addition to its weights.
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


@path_errors()
def load_exported(folder: Path, trust_remote_code: bool = False) -> LoadedModel:
    """Load a model from an export or another folder of transformers, on the GPU if there is one.

    Args:
        folder: Folder of the model.
        trust_remote_code: Whether transformers loads the model, running the Python files in the folder. Nothing is downloaded
            either way.

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
        raise UserError(f"{folder}: its tokenizer has {num_tokens} tokens, its model {vocab_size}: they are not of one export")
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    return LoadedModel(str(folder), model.to(device).eval(), tokenizer, folder)


def _load_remote_model(folder: Path) -> Any:
    """Load a model by transformers, running the code in its folder."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    model, info = loaded
    for fault in ("missing_keys", "unexpected_keys"):
        names = sorted(info[fault])
        if names:
            raise UserError(
                f"{folder}: {fault.replace('_', ' ')} in its weights: {', '.join(names[:3])}: copy the folder again"
            )
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
    """Load a model from any kind of model folder. Files are verified by the hashes that are on record.

    A checkpoint is exported to a temporary folder. An import stands for the model that it refers to.

    Args:
        folder: Folder of the model.
        model: Model configuration that replaces the checkpoint's own, e.g. to scale RoPE frequencies. The weights must fit.
        trust_remote_code: See `load_exported`.
        base: Present folder of a checkpoint's base if it was moved.
        adapter: Exported adapter to merge into the model, see `merge_adapter`.

    Raises:
        FileNotFoundError, UserError: Something is missing, corrupted or not supported.
    """
    opened = open_model_folder(folder, base)
    name = str(folder)
    files = opened.files
    with TemporaryDirectory() as temporary:
        if opened.kind is FolderKind.CHECKPOINT:
            checkpoint = verified_checkpoint(folder, base)
            files = Path(temporary) / f"export_{checkpoint.step}"
            export(checkpoint, files, model=model)
        elif opened.kind is FolderKind.IMPORT:
            opened.weights().verify()
        if adapter is not None:
            name = f"{folder} with {adapter}"
            merged = Path(temporary) / "merged"
            merge_adapter(adapter, files, merged)
            files = merged
        loaded = load_exported(files, trust_remote_code)
        loaded.name = name
        yield loaded
