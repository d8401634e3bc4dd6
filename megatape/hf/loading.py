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
from megatape.hf.folder import read_model, read_tokenizer


@dataclass
class LoadedModel:
    """An exported model, ready to generate; `name` says where it comes from."""

    name: str
    model: Any
    tokenizer: Any

    def __post_init__(self) -> None:
        # Evaluations set the configuration's own to the length of their sequences.
        self.position_length: int = getattr(self.model.config, "position_length", 0)


def load_exported(folder: Path, trust_remote_code: bool = False) -> LoadedModel:
    """The exported model in `folder`, on the GPU if there is one, run by the installed classes.

    trust_remote_code: hand the folder to transformers instead, which runs the Python files in it. Nothing is downloaded either
    way.
    Raises FileNotFoundError or ValueError if it is no exported model, or a tensor is missing, unexpected or not finite."""
    check_exported(folder)
    model: Any = _foreign_model(folder) if trust_remote_code else read_model(folder)
    tokenizer: Any = (
        AutoTokenizer.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
        if trust_remote_code
        else read_tokenizer(folder)
    )
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"{folder}: its tokenizer has {len(tokenizer)} tokens, its model {model.config.vocab_size}: they are not of one "
            "export"
        )
    return LoadedModel(str(folder), model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer)


def _foreign_model(folder: Path) -> Any:
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    model, info = loaded
    for fault in ("missing_keys", "unexpected_keys"):
        if names := sorted(info[fault]):
            raise ValueError(
                f"{folder}: {fault.replace('_', ' ')} in its weights: {', '.join(names[:3])}: copy the folder again"
            )
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise ValueError(f"{folder}: tensor {name} has values that are NaN or infinite: copy the folder again")
    return model


@contextmanager
def load_trained(
    folder: Path, model: ModelConfig | None = None, trust_remote_code: bool = False, base: Path | None = None
) -> Iterator[LoadedModel]:
    """As load_exported, but `folder` may be a training checkpoint too, which is exported for the time being.

    model: of a checkpoint, instead of its own; one that has the same weights, such as one with scaled frequencies. base: of a
    checkpoint, as CheckpointReader takes it."""
    if not (folder / MANIFEST).is_file():
        if base is not None:
            raise ValueError(f"{folder} is no checkpoint that holds only what was trained: leave out --base")
        yield load_exported(folder, trust_remote_code)
        return
    checkpoint = verified_checkpoint(folder, base)
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
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder}: no {file}: give a folder that `megatape export` wrote")
