"""Which parameters are trained; the others are frozen and cost no gradient, moment or master weight."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

# Groups that training.trainable names, as patterns of parameter names.
GROUPS = {
    "all": ("*",),
    "position": ("blocks.*.position.*", "blocks.*.attention.bias.*"),
    "embeddings": ("embedding.*",),
    "norms": ("*norm.weight",),
    "adapters": ("*.adapter.*",),
}


def freeze(model: nn.Module, trainable: Sequence[str]) -> None:
    """Freeze all parameters that no entry of `trainable`, a group or a pattern like blocks.0.*, matches."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(_matches(entry, name) for entry in trainable))


def check_trainable(model: nn.Module, trainable: Sequence[str]) -> None:
    """Raise ValueError if an entry of `trainable` matches no parameter of the model."""
    names = [name for name, _ in model.named_parameters()]
    for entry in trainable:
        if not any(_matches(entry, name) for name in names):
            raise ValueError(
                f"training.trainable: {entry!r} matches no parameter of this model: give a group ({', '.join(GROUPS)}) or a "
                f"pattern of names such as {names[-1]} or blocks.0.*"
            )


def _matches(entry: str, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in GROUPS.get(entry, (entry,)))
