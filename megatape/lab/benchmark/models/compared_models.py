"""Models with different encodings and activation checkpointing modes, which share their weights."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch

from megatape.config import ActivationCheckpointing
from megatape.lab.benchmark.models.measured_model import MeasuredModel, Weights
from megatape.lab.benchmark.models.shapes import ModelShape
from megatape.lab.encodings import BASELINE, with_encoding


class ModelName(NamedTuple):
    """Measured model: an encoding (or LLAMA's name) and an activation checkpointing mode."""

    encoding: str
    checkpointing: ActivationCheckpointing = "none"

    def __str__(self) -> str:
        if self.checkpointing == "none":
            return self.encoding
        return f"{self.encoding}, {self.checkpointing}"


LLAMA = ModelName("Llama of transformers")
ROPE = ModelName(BASELINE)


def build_models(
    shape: ModelShape,
    encodings: list[str],
    device: torch.device,
    modes: Sequence[ActivationCheckpointing] = (),
) -> dict[ModelName, MeasuredModel]:
    """Return a model with each encoding, including the baseline. Common weights are shared.

    Args:
        shape: Model and batch.
        encodings: Encoding names.
        device: Device to run on.
        modes: Activation checkpointing modes, each adding a model per encoding.

    Raises:
        UserError: An encoding does not support the shape.
    """
    weights: Weights = {}
    names = encodings
    if BASELINE not in encodings:
        names = [BASELINE, *encodings]
    # Report an unsupported encoding before building models.
    encoded = {name: replace(shape, model=with_encoding(shape.model, name)) for name in names}
    model_names = [ModelName(name) for name in names]
    model_names += [ModelName(name, mode) for name, mode in product(names, modes)]
    measured_models = {}
    for model_name in model_names:
        encoded_shape = encoded[model_name.encoding]
        measured_models[model_name] = MeasuredModel(
            encoded_shape,
            device,
            weights,
            checkpointing=model_name.checkpointing,
        )
    return measured_models
