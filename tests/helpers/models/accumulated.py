"""Encodings from outside the package with a sum along the sequence, and with weights by head.

One of each kind works when ranks split samples, and one has a registry entry that claims so by mistake.
"""

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.rotation import rotate
from megatape.distributed.layout import states_before_chunks
from megatape.distributed.mesh import Axis
from megatape.distributed.topology import Topology
from megatape.encodings.encoding import Encoding, Features, LayerBias, SequenceFeatures, TokenFeatures
from megatape.nn.parameters import parameter
from megatape.registry import ENCODINGS, EncodingEntry
from tests.helpers.runs.training_cases import train_cases

ENTRIES = {
    "accumulated": EncodingEntry(f"{__name__}:Accumulated", "turns by the content", rotates=True, whole_samples=""),
    "begins_anew": EncodingEntry(f"{__name__}:BeginsAnew", "turns by the content", rotates=True, whole_samples=""),
    "no_backward": EncodingEntry(f"{__name__}:NoBackward", "turns by the content", rotates=True, whole_samples=""),
    "sloped": EncodingEntry(f"{__name__}:Sloped", "a bias by distance", divides_heads=True),
    "first_heads": EncodingEntry(f"{__name__}:FirstHeads", "a bias by distance", divides_heads=True),
    "all_heads": EncodingEntry(f"{__name__}:AllHeads", "a bias by distance", divides_heads=True),
}


class Turns(TokenFeatures):
    """Angles by which each token turns all following ones."""

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        return (k.float().tanh().chunk(2, dim=-1)[0],)


class Phases(SequenceFeatures):
    """Sums turns up to each token, [B, N, L, R/2], including all earlier chunks."""

    def forward(self, features: Features, mask: DocumentStarts, carry: Features) -> tuple[Features, Features]:
        in_chunk = features[0].unflatten(1, (2, -1)).cumsum(2)
        last = in_chunk[:, :, -1]
        before = states_before_chunks(last, self.context, torch.zeros_like(last[:, 0]))
        return ((in_chunk + before[:, :, None]).flatten(1, 2),), ()


class PhasesOfRank(SequenceFeatures):
    """Sums turns over this rank's tokens alone, which is a mistake."""

    def forward(self, features: Features, document_starts: DocumentStarts, carry: Features) -> tuple[Features, Features]:
        return (features[0].cumsum(1),), ()


class PhasesWithoutGradient(Phases):
    """Sums turns without passing gradients to other ranks' chunks."""

    def forward(self, features: Features, document_starts: DocumentStarts, carry: Features) -> tuple[Features, Features]:
        (own,), _ = super().forward((features[0],), document_starts, carry)
        before = own.detach() - features[0].detach().cumsum(1)
        return (features[0].cumsum(1) + before,), ()


class Accumulated(Encoding):
    """Selective RoPE without its convolution."""

    phases: ClassVar[type[SequenceFeatures]] = Phases

    def token_features(self, axis: Axis) -> Turns:
        return Turns()

    def sequence_features(self, axis: Axis) -> SequenceFeatures:
        return self.phases()

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None, features: Features) -> tuple[Tensor, Tensor]:
        e = torch.cat([features[0].cos(), features[0].sin()], dim=-1)
        return rotate(q, e).to(q.dtype), rotate(k, e).to(k.dtype)


class BeginsAnew(Accumulated):
    phases = PhasesOfRank


class NoBackward(Accumulated):
    phases = PhasesWithoutGradient


class Slopes(LayerBias):
    """A bias by distance with a learned slope for each head."""

    def __init__(self, num_heads: int, axis: Axis) -> None:
        super().__init__()
        self.slope = parameter((num_heads,), axis, 0, init=0.25)

    def own(self, num_heads: int) -> Tensor:
        """Bias taking the slopes of this rank's heads."""
        return self.local_heads(self.slope)

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        distances = torch.arange(k.shape[1], dtype=torch.float32, device=k.device)
        return (-self.own(q.shape[2]).float()[:, None] * distances,)


class FirstSlopes(Slopes):
    """Bias taking the first heads' slopes on every rank."""

    def own(self, num_heads: int) -> Tensor:
        return self.slope[:num_heads]


class AllSlopes(Slopes):
    """Bias taking all heads' slopes on every rank."""

    def own(self, num_heads: int) -> Tensor:
        return self.slope


class Sloped(Encoding):
    score_bias = "distance"
    slopes: ClassVar[type[Slopes]] = Slopes

    def bias(self, axis: Axis) -> LayerBias:
        return self.slopes(self.config.num_heads, axis)


class FirstHeads(Sloped):
    slopes = FirstSlopes


class AllHeads(Sloped):
    slopes = AllSlopes


def train(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """train_cases in a process that knows the encodings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, entry in ENTRIES.items():
            patch.setitem(ENCODINGS, name, entry)
        return train_cases(payload, topology)
