"""Reads checkpoint weights: as a run's initial weights, or for experiments."""

import torch

from megatape.checkpoint.format.records import TensorRecord
from megatape.checkpoint.format.stored_weights import StoredWeights
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import ModelConfig
from megatape.errors import UserError
from megatape.hf.dtypes import stored_dtype
from megatape.hf.weights.model_weights import ModelWeights, Shapes, parameter_shapes
from megatape.model.build import build_model
from megatape.model.transformer import Transformer


class CheckpointWeights(CheckpointReader, ModelWeights):
    """Weights of a checkpoint. For transformers folders, see FolderWeights."""

    @property
    def model(self) -> ModelConfig:
        """Model section of the checkpoint's run."""
        return self.config.model

    @property
    def dtype(self) -> torch.dtype:
        """Precision of exported weights."""
        return stored_dtype(self.config.export, self.config.training)

    def shapes(self) -> Shapes:
        """Return the shape of every parameter."""
        return parameter_shapes(self.model)

    def stored(self) -> StoredWeights:
        """Return weight files and the location of each weight, from the checkpoint's base if it has one."""
        if self.base:
            return self.base
        file_of = self.manifest.tensors["weight"]
        shapes = self.shapes()
        tensors = {name: TensorRecord(file=file, name=name, shape=shapes[name]) for name, file in file_of.items()}
        files = {file: self.manifest.files[file] for file in set(file_of.values())}
        return StoredWeights(self.directory, tensors, files)


def load_model(checkpoint: CheckpointReader) -> Transformer:
    """Build the model of a checkpoint on the CPU, with its float32 master weights.

    Raises:
        UserError: The shape of a weight contradicts the checkpoint's configuration.
    """
    model = build_model(checkpoint.config.model)
    for name, parameter in model.named_parameters():
        weight = checkpoint.tensor(name)
        if weight.shape != parameter.shape:
            raise UserError(
                f"{checkpoint.directory}: {name} has shape {tuple(weight.shape)}, its configuration says "
                f"{tuple(parameter.shape)}: the checkpoint is corrupted, use another one"
            )
        parameter.data = weight
    return model
