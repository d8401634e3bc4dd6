"""Trained models ready to run: exported folders, and training checkpoints that are exported for the time being."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from megatape.checkpoint.manifest import MANIFEST
from megatape.checkpoint.reader import verified_checkpoint
from megatape.config import ModelConfig
from megatape.hf.export import export


@dataclass
class LoadedModel:
    """An exported model, ready to generate; `name` says where it comes from."""

    name: str
    model: Any
    tokenizer: Any

    def __post_init__(self) -> None:
        # Evaluations set the configuration's own to the length of their sequences.
        self.position_length: int = getattr(self.model.config, "position_length", 0)


def load_exported(folder: Path) -> LoadedModel:
    """The exported model in `folder`, on the GPU if there is one. Runs the modelling code in the folder.

    Raises FileNotFoundError or ValueError if it is none."""
    check_exported(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    return LoadedModel(str(folder), model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer)


@contextmanager
def load_trained(folder: Path, model: ModelConfig | None = None) -> Iterator[LoadedModel]:
    """As load_exported, but `folder` may be a training checkpoint too, which is exported for the time being.

    model: of a checkpoint, instead of its own; one that has the same weights, such as one with scaled frequencies."""
    if not (folder / MANIFEST).is_file():
        yield load_exported(folder)
        return
    checkpoint = verified_checkpoint(folder)
    if model is not None:
        checkpoint.config = checkpoint.config.model_copy(update={"model": model})
    with TemporaryDirectory() as temporary:
        exported = Path(temporary) / f"export_{checkpoint.step}"
        export(checkpoint, exported)
        loaded = load_exported(exported)
        loaded.name = str(folder)
        yield loaded


def check_exported(folder: Path) -> None:
    """Raises FileNotFoundError if `folder` is no exported model."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder: give one that `megatape export` wrote")
    if (folder / MANIFEST).is_file() and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} is a training checkpoint: export it first with `megatape export {folder} OUT`")
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder}: no {file}: give a folder that `megatape export` wrote")
