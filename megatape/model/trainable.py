"""Selects trainable parameters, and freezes all others, which then need no gradients, moments or master weights."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from megatape.encodings.encoding import EncodingModule, positioned_layers
from megatape.errors import UserError
from megatape.model.transformer import Transformer

# Group of the position encoding's parameters.
POSITION = "position"

# Name patterns of the other groups.
PATTERNS = {"all": "*", "embeddings": "embedding.*", "norms": "*norm.*", "adapters": "*.adapter.*"}


def freeze(model: Transformer, trainable: Sequence[str], frozen: Sequence[str]) -> None:
    """Freeze all parameters except the trainable ones.

    Args:
        model: Model to change.
        trainable: Groups, or name patterns such as blocks.0.*, to train.
        frozen: Groups or name patterns to freeze nevertheless.
    """
    chosen = _members(model, trainable) - _members(model, frozen)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)


def check_trainable(model: Transformer, trainable: Sequence[str], frozen: Sequence[str]) -> None:
    """Check the entries of training.trainable and training.frozen.

    Raises:
        UserError: An entry matches no parameter of the model, or the loss reads no trainable parameter.
    """
    for setting, entries in (("trainable", trainable), ("frozen", frozen)):
        for entry in entries:
            _check_entry(model, setting, entry)
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


def _check_entry(model: Transformer, setting: str, entry: str) -> None:
    """Raise UserError if an entry of a setting matches no parameter."""
    if _named(model, entry):
        return
    existing = [group for group in (*PATTERNS, POSITION) if _named(model, group)]
    groups = ", ".join(existing)
    raise UserError(
        f"training.{setting}: {entry!r} matches no parameter of this model: give a group ({groups}) or a pattern "
        "of names such as blocks.0.*"
    )


def _members(model: Transformer, entries: Sequence[str]) -> set[str]:
    """Return the names of parameters matching one of the entries."""
    return set().union(*(_named(model, entry) for entry in entries))


def _named(model: Transformer, entry: str) -> set[str]:
    """Return the names of parameters matching an entry."""
    if entry == POSITION:
        return position_parameters(model)
    pattern = PATTERNS.get(entry, entry)
    return {name for name, _ in model.named_parameters() if fnmatchcase(name, pattern)}


def position_parameters(model: Transformer) -> set[str]:
    """Return the parameter names of all modules that the position encoding adds."""
    names: set[str] = set()
    for path, module in model.named_modules():
        if isinstance(module, EncodingModule):
            names.update(f"{path}.{name}" for name, _ in module.named_parameters())
    return names
