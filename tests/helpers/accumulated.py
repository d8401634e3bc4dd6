"""An encoding from outside the package with a sum along the sequence that context-parallel ranks exchange."""

from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.rotation import rotate
from megatape.distributed.layout import states_before_chunks
from megatape.distributed.mesh import Axis
from megatape.distributed.topology import Topology
from megatape.encodings.encoding import Encoding, Features, SequenceFeatures, TokenFeatures
from megatape.registry import ENCODINGS, EncodingEntry
from tests.helpers.training_cases import train_cases

ENTRY = EncodingEntry("tests.helpers.accumulated:Accumulated", "turns by the content", rotates=True, whole_samples="")


class Turns(TokenFeatures):
    """By how much each token turns those after it."""

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        return (k.float().tanh().chunk(2, dim=-1)[0],)


class Phases(SequenceFeatures):
    """The sum of the turns, [B, N, L, R/2], of each chunk and before it."""

    def forward(self, features: Features, mask: DocumentStarts, carry: Features) -> tuple[Features, Features]:
        in_chunk = features[0].unflatten(1, (2, -1)).cumsum(2)
        last = in_chunk[:, :, -1]
        before = states_before_chunks(last, self.context, torch.zeros_like(last[:, 0]))
        return ((in_chunk + before[:, :, None]).flatten(1, 2),), ()


class Accumulated(Encoding):
    """Selective RoPE without its convolution."""

    def token_features(self, axis: Axis) -> Turns:
        return Turns()

    def sequence_features(self, axis: Axis) -> Phases:
        return Phases()

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None, features: Features) -> tuple[Tensor, Tensor]:
        e = torch.cat([features[0].cos(), features[0].sin()], dim=-1)
        return rotate(q, e).to(q.dtype), rotate(k, e).to(k.dtype)


def train(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """train_cases in a process that knows the encoding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENCODINGS, "accumulated", ENTRY)
        return train_cases(payload, topology)
