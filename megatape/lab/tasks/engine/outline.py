"""Outlines of models: tokenizer and limits, enough to make all examples before any weight is read."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from megatape.hf.exporting.tokenizer import write_tokenizer
from megatape.hf.loading.exact_tokenizer import read_tokenizer
from megatape.hf.model_folder import FolderKind, open_model_folder
from megatape.hf.weights.model_weights import ModelWeights
from megatape.lab.tasks.engine.loading import LoadingOptions


@dataclass
class Outline:
    """The outline of a model in a folder. See ModelOutline."""

    name: str
    tokenizer: Any
    vocab_size: int
    max_positions: int


def read_outline(folder: Path, loading: LoadingOptions, share: int = 0, shares: int = 1) -> Outline:
    """Read the outline of the model that is loaded with the same options.

    Files with known hashes are checked, divided over several processes.

    Args:
        folder: Folder of the model.
        loading: Options of loading.
        share: Number of this process's share of the files.
        shares: Number of shares.

    Raises:
        MissingPath: A folder or file is missing.
        UserError: The folder holds no such model, or a file is corrupted.
    """
    name = loading.name_of(folder)
    opened = open_model_folder(folder, loading.base)
    if loading.trust_remote_code and opened.kind is not FolderKind.CHECKPOINT:
        options: dict[str, Any] = {"trust_remote_code": True, "local_files_only": True}
        config = AutoConfig.from_pretrained(opened.files, **options)
        tokenizer = AutoTokenizer.from_pretrained(opened.files, split_special_tokens=True, **options)
        return Outline(name, tokenizer, config.vocab_size, config.max_position_embeddings)
    source = opened.weights()
    source.verify(share, shares)
    if opened.kind is FolderKind.CHECKPOINT:
        tokenizer = exported_tokenizer(source)
    else:
        tokenizer = read_tokenizer(opened.files)
    return Outline(name, tokenizer, source.model.vocab_size, source.model.max_positions)


def exported_tokenizer(source: ModelWeights) -> Any:
    """Return the tokenizer that an export of these weights has."""
    with TemporaryDirectory() as files:
        write_tokenizer(source.tokenizer(), source.model.max_positions, Path(files))
        return read_tokenizer(Path(files))
