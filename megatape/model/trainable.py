"""Which parameters are trained; the others are frozen and cost no gradient, moment or master weight.

And which the model has for its position encoding's sake.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from megatape.encodings.encoding import EncodingModule, positioned_layers
from megatape.errors import UserError
from megatape.model.transformer import Transformer

POSITION = "position"  # the group of what the model has for its encoding's sake
PATTERNS = {"all": "*", "embeddings": "embedding.*", "norms": "*norm.*", "adapters": "*.adapter.*"}  # of other groups


def freeze(model: Transformer, trainable: Sequence[str], frozen: Sequence[str]) -> None:
    """Freeze all parameters but those that an entry of `trainable` stands for and none of `frozen` does.

    An entry is a group or a pattern like blocks.0.*.
    """
    chosen = _members(model, trainable) - _members(model, frozen)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)


def check_trainable(model: Transformer, trainable: Sequence[str], frozen: Sequence[str]) -> None:
    """Raise UserError if an entry stands for no parameter of the model, or if nothing is left to train that the loss reads."""
    for setting, entries in (("trainable", trainable), ("frozen", frozen)):
        for entry in entries:
            if not _members(model, [entry]):
                groups = ", ".join(group for group in (*PATTERNS, POSITION) if _members(model, [group]))
                raise UserError(
                    f"training.{setting}: {entry!r} matches no parameter of this model: give a group ({groups}) or a pattern "
                    "of names such as blocks.0.*"
                )
    chosen = _members(model, trainable) - _members(model, frozen)
    last = positioned_layers(model.config)[-1]
    if not chosen:
        raise UserError(
            f"training.frozen {list(frozen)} freezes all that training.trainable {list(trainable)} stands for, so nothing is "
            "trained: remove an entry of frozen, or add one to trainable"
        )
    if all(name.startswith(f"blocks.{last}.position.") for name in chosen):
        raise UserError(
            f"training.trainable {list(trainable)} trains the position update of block {last} only, which no later block "
            "reads: add an entry to it"
        )


def _members(model: Transformer, entries: Sequence[str]) -> set[str]:
    return set().union(*(_named(model, entry) for entry in entries))


def _named(model: Transformer, entry: str) -> set[str]:
    if entry == POSITION:
        return position_parameters(model)
    pattern = PATTERNS.get(entry, entry)
    return {name for name, _ in model.named_parameters() if fnmatchcase(name, pattern)}


def position_parameters(model: Transformer) -> set[str]:
    """Names of the parameters that the model has for its encoding's sake: those of the modules that the encoding makes."""
    return {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, EncodingModule)
        for name, _ in module.named_parameters()
    }
