"""Checkpoints as the source of an export and of initial weights."""

from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from megatape.accounting.counts import meta_model
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.tensors import FileRecord, StoredWeights, TensorRecord
from megatape.config import Config, ModelConfig
from megatape.config.run import Dtype
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError


class Checkpoint(Protocol):
    """The part of megatape.checkpoint.reader.CheckpointReader that export needs."""

    directory: Path
    step: int
    tokens: int

    @property
    def config(self) -> Config: ...
    def names(self) -> list[str]: ...
    def tensor(self, name: str) -> Tensor: ...
    def tokenizer(self) -> Tokenizer: ...


class CheckpointWeights(CheckpointReader):
    """The weights in a checkpoint, and where they are; megatape.hf.folder_weights has those in a folder of transformers."""

    @property
    def model(self) -> ModelConfig:
        """The model that they belong to."""
        return self.config.model

    @property
    def dtype(self) -> torch.dtype:
        """The precision in which they are exported."""
        return stored_dtype(self.config)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter."""
        return parameter_shapes(self.model)

    def stored(self) -> StoredWeights:
        """Where they are. Those of a checkpoint with a base: the base's."""
        if self.base:
            return self.base
        held = self.manifest["tensors"]["weight"]
        shapes = self.shapes()
        tensors = {name: TensorRecord(file=file, name=name, shape=shapes[name]) for name, file in held.items()}
        files = {file: FileRecord(**self.manifest["files"][file]) for file in set(held.values())}
        return StoredWeights(self.directory, tensors, files)


def parameter_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a model."""
    return {name: tuple(parameter.shape) for name, parameter in meta_model(model).named_parameters()}


def check_parameters(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """The shapes of a checkpoint's parameters. Raises UserError if they are not those of its configuration."""
    shapes = parameter_shapes(checkpoint.config.model)
    if different := sorted(shapes.keys() ^ set(checkpoint.names())):
        raise UserError(
            f"{checkpoint.directory}: its parameters are not those of its configuration; they differ in "
            f"{', '.join(different[:3])}: the checkpoint is corrupted, use another one"
        )
    return shapes


def stored_dtype(config: Config) -> torch.dtype:
    """The precision in which exported weights are stored."""
    return getattr(torch, config.export.dtype or config.training.precision)


def dtype_name(dtype: torch.dtype) -> Dtype:
    """The name of a precision in configurations and records."""
    return cast(Dtype, str(dtype).removeprefix("torch."))
