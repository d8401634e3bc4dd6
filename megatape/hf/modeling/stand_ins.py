"""What position encodings import from MegaTAPE's training library, for one process that trains nothing.

Exported folders have this file in the library's place.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig

ModelConfig = PreTrainedConfig  # configuration_tape.py has the names of a model section
ScalingConfig = Any
BiasKind = str
DocumentStarts = Tensor | None
Mask = DocumentStarts  # Name in files of encodings written for version 0.1
linear = F.linear
fused_update: Any = None  # by Triton kernels, which only training chooses


class Entry(NamedTuple):
    """A position encoding that there is code for."""

    code: Any
    scalable: bool

    def load(self) -> Any:
        """The class."""
        return self.code


class Axis(NamedTuple):
    """The ranks that divide the model: this one."""

    size: int = 1
    rank: int = 0


SINGLE = Axis()


@dataclass(frozen=True)
class Positions:
    """As in training, where evaluation has no offset."""

    max_offset: int = 0
    drawn_from: int = 0


@dataclass(frozen=True)
class Uniform:
    """Initial values that are uniform between middle - bound and middle + bound."""

    bound: float
    middle: float = 0.0


class Settings(NamedTuple):
    """Settings of a parameter: its initial value, their distribution, or None for a normal one."""

    init: float | Uniform | None


def parameter(
    shape: tuple[int, ...], axis: Axis, dim: int | None = None, *, init: float | Uniform | None = None, **training: Any
) -> nn.Parameter:
    """A whole parameter with its settings."""
    whole = nn.Parameter(torch.empty(shape))
    whole.settings = Settings(init)  # type: ignore[attr-defined]
    return whole


class ColumnLinear(nn.Linear):
    """A whole linear layer."""

    def __init__(
        self, in_features: int, out_features: int, axis: Axis = SINGLE, bias: bool = False, role: str = "matrix"
    ) -> None:
        super().__init__(in_features, out_features, bias)


def local_tokens(x: Tensor, axis: Axis) -> Tensor:
    """All tokens."""
    return x


channels_to_tokens = all_tokens = local_tokens


def tokens_to_heads(axis: Axis, *parts: Tensor) -> tuple[Tensor, ...]:
    """All heads."""
    return parts


heads_to_tokens = tokens_to_heads


def recompute(function: Any, *args: Any) -> Any:
    """function(*args); transformers has checkpointing of its own."""
    return function(*args)
