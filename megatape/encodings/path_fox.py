"""PaTH-FoX (Yang et al., arXiv 2505.16381, section 3.3): the reflections of PaTH and the forget gates of FoX.

As in FoX, c_i - c_j is not divided by sqrt R; in `PathFoxScaled` it is, as in flash-linear-attention.
"""

from typing import ClassVar

from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Features, LayerBias, SequenceFeatures, TokenFeatures
from megatape.encodings.fox import Decay, ForgetGates, GateSums
from megatape.encodings.path import Path, PathBias, PathScores


class PathFoxFeatures(TokenFeatures):
    """Those of PaTH, and the gates of FoX."""

    def __init__(self, reflections: TokenFeatures, gates: TokenFeatures) -> None:
        super().__init__()
        self.reflections = reflections
        self.gates = gates
        self.multiply_adds = reflections.multiply_adds + gates.multiply_adds

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        return (*self.reflections(h, q, k), *self.gates(h, q, k))


class PathFoxSums(SequenceFeatures):
    """Those of PaTH, and the sums of FoX."""

    def __init__(self, directions: SequenceFeatures) -> None:
        super().__init__()
        self.directions = directions
        self.sums = GateSums()

    def forward(self, features: Features, document_starts: DocumentStarts, carry: Features) -> tuple[Features, Features]:
        directions, inputs = self.directions(features[:2], document_starts, carry[:1])
        sums, last = self.sums(features[2:], document_starts, carry[1:])
        return (*directions, *sums), (*inputs, *last)


class PathFoxScores(PathScores):
    """The sum of both. weights: those of PathScores, then c of all tokens."""

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        return super().block(weights[:-1], rows, columns) + Decay(weights[-1]).block(weights[-1:], rows, columns)


class PathFoxBias(PathBias):
    """Reflections and gates. scale: a factor on c."""

    form = PathFoxScores

    def __init__(self, num_heads: int, num_channels: int, head_dim: int, scale: float) -> None:
        super().__init__(num_heads, num_channels, head_dim)
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return (*super().forward(q, k, features[:2]), features[2] * self.scale)

    def later_keys(self, weights: tuple[Tensor, ...]) -> Tensor:
        return super().later_keys(weights[:-1])


class PathFox(Path):
    """Reflections and forget gates.

    score(i, j) = q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt R + c_i - c_j
    """

    scaled: ClassVar[bool] = False

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        gates = ForgetGates(self.config.hidden_size, self.config.num_heads, tensor_axis)
        return PathFoxFeatures(super().token_features(tensor_axis), gates)

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures:
        return PathFoxSums(super().sequence_features(tensor_axis))

    def bias(self, tensor_axis: Axis) -> LayerBias:
        size = self.config.head_dim
        return PathFoxBias(self.config.num_heads, self.config.num_kv_heads, size, size**-0.5 if self.scaled else 1.0)


class PathFoxScaled(PathFox):
    """Reflections and forget gates, with all of the score divided by sqrt R.

    score(i, j) = (q_i^T H_i H_(i-1) ... H_(j+1) k_j + c_i - c_j) / sqrt R
    """

    scaled = True
