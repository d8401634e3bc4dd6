"""Parameter counts, on shapes without memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from megatape.config import ModelConfig
from megatape.model.build import meta_model
from megatape.model.trainable import freeze, position_parameters


@dataclass(frozen=True)
class ParameterCount:
    """Parameter counts.

    Attributes:
        total: All parameters.
        embedding: Embedding and head.
        position: Position encoding.
    """

    total: int
    embedding: int
    position: int


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Count the parameters of a model."""
    model = meta_model(config)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    embedding = sum(size for name, size in sizes.items() if name.startswith(("embedding.", "head.")))
    position = sum(sizes[name] for name in position_parameters(model))
    return ParameterCount(sum(sizes.values()), embedding, position)


def count_trainable(config: ModelConfig, trainable: Sequence[str], frozen: Sequence[str]) -> int:
    """Count the parameters that a run trains.

    Args:
        config: Model section.
        trainable: Patterns in training.trainable.
        frozen: Patterns in training.frozen.
    """
    model = meta_model(config)
    freeze(model, trainable, frozen)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
