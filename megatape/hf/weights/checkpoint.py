"""Interface of checkpoints for exports, and a parameter check."""

from pathlib import Path
from typing import Protocol

from torch import Tensor

from megatape.config import Config, ModelConfig
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from megatape.hf.weights.model_weights import MAX_NAMES, Shapes, parameter_shapes


class Checkpoint(Protocol):
    """Checkpoint to export: a part of megatape.checkpoint.load.reader.CheckpointReader."""

    directory: Path
    step: int
    tokens: int

    @property
    def config(self) -> Config: ...
    def names(self) -> list[str]: ...
    def tensor(self, name: str) -> Tensor: ...
    def tokenizer(self) -> Tokenizer: ...


def check_parameters(checkpoint: Checkpoint, model: ModelConfig) -> Shapes:
    """Check that a checkpoint has the parameters of a model, and return their shapes.

    Args:
        checkpoint: Checkpoint of a run.
        model: Model section of the run, including adapters.

    Raises:
        UserError: The checkpoint has other parameters.
    """
    shapes = parameter_shapes(model)
    different = sorted(shapes.keys() ^ set(checkpoint.names()))
    if different:
        raise UserError(
            f"{checkpoint.directory}: its parameters are not those of its configuration; they differ in "
            f"{', '.join(different[:MAX_NAMES])}: the checkpoint is corrupted, use another one"
        )
    return shapes
