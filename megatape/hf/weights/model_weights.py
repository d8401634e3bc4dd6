"""Weights of a model, in a folder of any kind, and the models that can start with them."""

from typing import Protocol

import torch
from torch import Tensor

from megatape.accounting.parameters import meta_model
from megatape.checkpoint.initial_weights import InitialWeights
from megatape.config import ModelConfig
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from megatape.model.lora import in_adapter
from megatape.model.trainable import position_parameters

# Maximum number of parameters that an error names.
MAX_NAMES = 3

Shapes = dict[str, tuple[int, ...]]


class ModelWeights(InitialWeights, Protocol):
    """Weights of a model: of a checkpoint, an export, an import or a model of transformers."""

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights in an export."""

    def shapes(self) -> Shapes:
        """Return the shape of every parameter."""

    def tensor(self, name: str) -> Tensor:
        """Read a whole weight in float32."""

    def tokenizer(self) -> Tokenizer:
        """Open the model's tokenizer."""

    def check_fits(self, model: ModelConfig) -> set[str]:
        """Check that a model can start with these weights. New adapters may be missing.

        Args:
            model: Model section of the run.

        Returns:
            Names of the parameters that start with these weights. With another encoding, parameters of either encoding are
            not among them, even if both have one of the same name.

        Raises:
            UserError: The model cannot start with them. The message names the parameters.
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
        faults = {"it lacks": sorted(missing), "this model lacks": sorted(unknown), "shapes differ:": different}
        for fault, names in faults.items():
            if names:
                raise UserError(
                    f"training.init_from {self.directory} holds another model: {fault} {_first(names)}: take over its model "
                    "section, but for the encoding, the scaling, max_positions and new adapters"
                )
        return ours.keys() & theirs.keys()


def parameter_shapes(model: ModelConfig) -> Shapes:
    """Return the shape of every parameter of a model."""
    return {name: tuple(parameter.shape) for name, parameter in meta_model(model).named_parameters()}


def _without(excluded: set[str], shapes: Shapes) -> Shapes:
    """Return the shapes of all parameters but the excluded ones."""
    return {name: shape for name, shape in shapes.items() if name not in excluded}


def _first(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    text = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        text += f" and {len(names) - MAX_NAMES} more"
    return text
