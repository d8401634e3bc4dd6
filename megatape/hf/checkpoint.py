"""What an export is made of."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from megatape.config import Config
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from megatape.model.accounting import meta_model


class Checkpoint(Protocol):
    """What export needs of megatape.checkpoint.reader.CheckpointReader."""

    directory: Path
    step: int
    tokens: int

    @property
    def config(self) -> Config: ...
    def names(self) -> list[str]: ...
    def tensor(self, name: str) -> Tensor: ...
    def tokenizer(self) -> Tokenizer: ...


def check_parameters(checkpoint: Checkpoint) -> dict[str, torch.Size]:
    """The shapes of a checkpoint's parameters. Raises UserError if they are not those of its configuration."""
    shapes = {name: parameter.shape for name, parameter in meta_model(checkpoint.config.model).named_parameters()}
    if different := sorted(shapes.keys() ^ set(checkpoint.names())):
        raise UserError(
            f"{checkpoint.directory}: its parameters are not those of its configuration; they differ in "
            f"{', '.join(different[:3])}: the checkpoint is corrupted, use another one"
        )
    return shapes
