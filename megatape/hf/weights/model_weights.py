"""Interface for a model's weights in any kind of folder, and the check whether a run can start with them."""

from typing import Protocol

import torch
from torch import Tensor

from megatape.checkpoint.initial_weights import InitialWeights
from megatape.config import ModelConfig
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from megatape.model.build import meta_model
from megatape.model.lora import in_adapter
from megatape.model.trainable import position_parameters

# Maximum number of parameters named in an error message.
MAX_NAMES = 3

Shapes = dict[str, tuple[int, ...]]


class ModelWeights(InitialWeights, Protocol):
    """Weights of a checkpoint, an export, an import or another transformers model."""

    @property
    def dtype(self) -> torch.dtype:
        """Precision of exported weights."""

    def shapes(self) -> Shapes:
        """Return the shape of every parameter."""

    def tensor(self, name: str) -> Tensor:
        """Read an unsharded weight in float32."""

    def tokenizer(self) -> Tokenizer:
        """Open the model's tokenizer."""

    def check_fits(self, model: ModelConfig) -> set[str]:
        """Check that a model can start with these weights. New adapters may be missing.

        Args:
            model: Model section of the run.

        Returns:
            Names of the parameters that start with these weights. If the run has another encoding, the parameters of both
            encodings are excluded, even if they have the same name.

        Raises:
            UserError: The model cannot start with these weights. The message names the parameters.
        """
        ours = parameter_shapes(model)
        theirs = self.shapes()
        if self.model.encoding != model.encoding:
            excluded = position_parameters(meta_model(model)) | position_parameters(meta_model(self.model))
            ours = _without(excluded, ours)
            theirs = _without(excluded, theirs)

        missing = [name for name in ours.keys() - theirs.keys() if not in_adapter(name)]
        unknown = list(theirs.keys() - ours.keys())
        different = []
        for name, shape in ours.items():
            if name in theirs and theirs[name] != shape:
                different.append(f"{name} {theirs[name]}, here {shape}")
        differences = {"it lacks": sorted(missing), "this model lacks": sorted(unknown), "shapes differ:": different}
        for difference, names in differences.items():
            if names:
                raise UserError(
                    f"training.init_from {self.directory} holds another model: {difference} {_first(names)}: take over its "
                    "model section, but for the encoding, the scaling, max_positions and new adapters"
                )
        return ours.keys() & theirs.keys()


def parameter_shapes(model: ModelConfig) -> Shapes:
    """Return the unsharded shape of every parameter."""
    return {name: tuple(parameter.shape) for name, parameter in meta_model(model).named_parameters()}


def _without(excluded: set[str], shapes: Shapes) -> Shapes:
    """Return the shapes of all parameters except the excluded ones."""
    return {name: shape for name, shape in shapes.items() if name not in excluded}


def _first(names: list[str]) -> str:
    """Return the first MAX_NAMES names, and the number of further ones, as a text."""
    text = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        text += f" and {len(names) - MAX_NAMES} more"
    return text
