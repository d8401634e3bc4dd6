"""Which parameters are trained; the others are frozen and cost no gradient, moment or master weight."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from megatape.config import ModelConfig
from megatape.model.accounting import meta_model
from megatape.model.parts import position_parameters
from megatape.model.transformer import Transformer

POSITION = "position"  # the group of what the model has for its encoding's sake
PATTERNS = {"all": "*", "embeddings": "embedding.*", "norms": "*norm.weight", "adapters": "*.adapter.*"}  # of other groups


def freeze(model: Transformer, trainable: Sequence[str]) -> None:
    """Freeze all parameters that no entry of `trainable`, a group or a pattern like blocks.0.*, stands for."""
    chosen = set().union(*(_members(model, entry) for entry in trainable))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)


def check_trainable(model: Transformer, trainable: Sequence[str]) -> None:
    """Raise ValueError if an entry of `trainable` stands for no parameter of the model."""
    for entry in trainable:
        if not _members(model, entry):
            *_, example = (name for name, _ in model.named_parameters())
            raise ValueError(
                f"training.trainable: {entry!r} matches no parameter of this model: give a group "
                f"({', '.join([*PATTERNS, POSITION])}) or a pattern of names such as {example} or blocks.0.*"
            )


def count_trainable(config: ModelConfig, trainable: Sequence[str]) -> int:
    """Number of weights that `freeze` leaves trainable, counted on shapes."""
    model = meta_model(config)
    freeze(model, trainable)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _members(model: Transformer, entry: str) -> set[str]:
    if entry == POSITION:
        return position_parameters(model)
    pattern = PATTERNS.get(entry, entry)
    return {name for name, _ in model.named_parameters() if fnmatchcase(name, pattern)}
