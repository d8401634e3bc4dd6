"""Single-process stand-ins for the parts of MegaTAPE that position encodings import.

Exported folders contain this file instead of the library.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig

# TapeConfig (configuration_tape.py) has the attributes of a model section.
ModelConfig = PreTrainedConfig
ScalingConfig = Any
BiasKind = str
ConfigError = ValueError
DocumentStarts = Tensor | None
# Encodings written for version 0.1 import this name.
Mask = DocumentStarts
linear = F.linear
# Only training selects the Triton kernels for the position update.
fused_update: Any = None


class Entry(NamedTuple):
    """Entry in the table of position encodings.

    Attributes:
        code: Class of the encoding.
        scalable: Whether the encoding's rotary frequencies can be scaled.
    """

    code: Any
    scalable: bool

    def load(self) -> Any:
        """Return the class of the encoding."""
        return self.code


class Axis(NamedTuple):
    """Ranks over which a model is sharded: only this one."""

    size: int = 1
    rank: int = 0


SINGLE = Axis()


@dataclass(frozen=True)
class Positions:
    """Positions of tokens, without an offset, as in evaluations during training."""

    max_offset: int = 0
    drawn_from: int = 0


@dataclass(frozen=True)
class Uniform:
    """Uniform distribution of initial values, from middle - bound to middle + bound."""

    bound: float
    middle: float = 0.0


class ParameterSpec(NamedTuple):
    """Specification of a parameter.

    Attributes:
        init: Initial value, its distribution, or None for a normal distribution.
    """

    init: float | Uniform | None


def parameter(
    shape: tuple[int, ...], axis: Axis, dim: int | None = None, *, init: float | Uniform | None = None, **training: Any
) -> nn.Parameter:
    """Make an unsharded parameter with its specification."""
    weight = nn.Parameter(torch.empty(shape))
    weight.spec = ParameterSpec(init)  # type: ignore[attr-defined]
    return weight


class ColumnLinear(nn.Linear):
    """Unsharded linear layer."""

    def __init__(
        self, in_features: int, out_features: int, axis: Axis = SINGLE, bias: bool = False, role: str = "matrix"
    ) -> None:
        super().__init__(in_features, out_features, bias)


def local_tokens(x: Tensor, axis: Axis) -> Tensor:
    """Return all tokens."""
    return x


channels_to_tokens = local_tokens
all_tokens = local_tokens


def tokens_to_heads(axis: Axis, *parts: Tensor) -> tuple[Tensor, ...]:
    """Return all heads."""
    return parts


heads_to_tokens = tokens_to_heads


def recompute(function: Any, *args: Any) -> Any:
    """Call a function. transformers has its own activation checkpointing."""
    return function(*args)
