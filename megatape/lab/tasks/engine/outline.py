"""Model outlines: tokenizer and limits, for making all examples before reading any weight."""

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
    """A ModelOutline read from a folder."""

    name: str
    tokenizer: Any
    vocab_size: int
    max_positions: int


def read_outline(folder: Path, loading: LoadingOptions, share: int = 0, num_shares: int = 1) -> Outline:
    """Read a model's outline, and check its share of the files with known hashes.

    Args:
        folder: Model folder.
        loading: Options later used for loading the model.
        share: Index of this process's share.
        num_shares: Number of shares.

    Raises:
        MissingPath: A folder or file is missing.
        UserError: The folder holds no model, or a file is corrupted.
    """
    name = loading.name_of(folder)
    opened = open_model_folder(folder, loading.base)
    if loading.trust_remote_code and opened.kind is not FolderKind.CHECKPOINT:
        options: dict[str, Any] = {"trust_remote_code": True, "local_files_only": True}
        config = AutoConfig.from_pretrained(opened.files, **options)
        tokenizer = AutoTokenizer.from_pretrained(opened.files, split_special_tokens=True, **options)
        return Outline(name, tokenizer, config.vocab_size, config.max_position_embeddings)
    source = opened.weights()
    source.verify(share, num_shares)
    if opened.kind is FolderKind.CHECKPOINT:
        tokenizer = exported_tokenizer(source)
    else:
        tokenizer = read_tokenizer(opened.files)
    return Outline(name, tokenizer, source.model.vocab_size, source.model.max_positions)


def exported_tokenizer(source: ModelWeights) -> Any:
    """Return the tokenizer as exported with these weights."""
    with TemporaryDirectory() as files:
        write_tokenizer(source.tokenizer(), source.model.max_positions, Path(files))
        return read_tokenizer(Path(files))
