"""Outlines of models: tokenizer and limits, from which all examples are made before any weight is read."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from megatape.hf.loading import read_tokenizer
from megatape.hf.model_folder import open_model_folder
from megatape.hf.tokenizer import write_tokenizer
from megatape.hf.weights.model_weights import ModelWeights


@dataclass
class Outline:
    """A ModelOutline."""

    name: str
    tokenizer: Any
    vocab_size: int
    max_positions: int


def read_outline(
    folder: Path, base: Path | None, adapter: Path | None, trust_remote_code: bool, share: int = 0, shares: int = 1
) -> Outline:
    """The outline of the model that `load_trained` loads with the same arguments.

    Every `shares`-th of the files whose hashes are known is compared with its own, beginning with number `share`.

    Raises:
        MissingPath: A folder or file is missing.
        UserError: The folder holds no such model, or a file is not what was written.
    """
    name = model_name(folder, adapter)
    opened = open_model_folder(folder, base)
    if trust_remote_code and opened.kind != "checkpoint":
        given: dict[str, Any] = {"trust_remote_code": True, "local_files_only": True}
        config = AutoConfig.from_pretrained(opened.files, **given)
        tokenizer = AutoTokenizer.from_pretrained(opened.files, split_special_tokens=True, **given)
        return Outline(name, tokenizer, config.vocab_size, config.max_position_embeddings)
    source = opened.weights()
    source.verify(share, shares)
    tokenizer = exported_tokenizer(source) if opened.kind == "checkpoint" else read_tokenizer(opened.files)
    return Outline(name, tokenizer, source.model.vocab_size, source.model.max_positions)


def model_name(folder: Path, adapter: Path | None) -> str:
    """The name of a model in messages and records."""
    return str(folder) if adapter is None else f"{folder} with {adapter}"


def exported_tokenizer(source: ModelWeights) -> Any:
    """The tokenizer that an export of these weights has."""
    with TemporaryDirectory() as files:
        write_tokenizer(source.tokenizer(), source.model.max_positions, Path(files))
        return read_tokenizer(Path(files))
