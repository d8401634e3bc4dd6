"""A position encoding from outside the package: its class, its code for exported models, and its registry line."""

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from megatape.attention.operation import Attends
from megatape.model.encodings.encoding import Encoding, Features, LayerBias
from megatape.parallel.mesh import Axis
from megatape.parallel.parameters import parameter
from megatape.registry import ENCODINGS, EncodingEntry
from megatape.runtime.topology import Topology
from tests.helpers.training_cases import train_cases

START = 0.25


class SlopeBias(LayerBias):
    """-slope times distance with a learned slope for each head."""

    def __init__(self, num_heads: int, axis: Axis) -> None:
        super().__init__()
        self.slope = parameter((num_heads,), axis, 0, init=START, lr_scale=3.0)

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return (-self.slope.float()[:, None] * torch.arange(q.shape[1], dtype=torch.float32, device=q.device),)


class LearnedSlopes(Encoding):
    """ALiBi with slopes that are learned."""

    attends: ClassVar[Attends] = "distance bias"

    def bias(self, axis: Axis) -> LayerBias:
        return SlopeBias(self.config.num_heads, axis)


EXPORTED = """
import torch
from torch import Tensor, nn
from transformers import initialization as init

from .configuration_tape import TapeConfig
from .encoding import Encoding, LayerBias, Pairs


class SlopeBias(LayerBias):
    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.empty(num_heads))

    def forward(self, pairs: Pairs) -> Tensor:
        return (-self.slope.float()[:, None, None] * pairs.distance)[None]

    def init_weights(self, std: float) -> None:
        init.constant_(self.slope, 0.25)


class LearnedSlopes(Encoding):
    config: TapeConfig

    def bias(self) -> LayerBias:
        return SlopeBias(self.config.num_attention_heads)
"""
FILE = "encoding_learned_slopes"
LINE = {"learned_slopes": EncodingEntry(f"{__name__}:LearnedSlopes", "learned slopes", f"{FILE}:LearnedSlopes")}


def train(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """train_cases in a process that knows the encoding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENCODINGS, *next(iter(LINE.items())))
        return train_cases(payload, topology)
