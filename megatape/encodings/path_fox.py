"""PaTH-FoX (Yang et al., arXiv 2505.16381, section 3.3): PaTH's reflections and FoX's forget gates.

    score(i, j) = q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt R + c_i - c_j

H as in path.py, c as in fox.py. As in FoX, c_i - c_j is not divided by sqrt R. `PathFoxScaled` divides it, as
flash-linear-attention does.
"""

from typing import ClassVar

from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import Decay
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Features, LayerBias, SequenceFeatures, TokenFeatures
from megatape.encodings.fox import ForgetGates, GateSums
from megatape.encodings.path import Path, PathBias, PathScores

# PaTH has two features: w and beta.
NUM_PATH_FEATURES = 2


class PathFoxFeatures(TokenFeatures):
    """Features of PaTH, then FoX's gates."""

    def __init__(self, reflections: TokenFeatures, gates: TokenFeatures) -> None:
        super().__init__()
        self.reflections = reflections
        self.gates = gates
        self.multiply_adds = reflections.multiply_adds + gates.multiply_adds

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        return (*self.reflections(h, q, k), *self.gates(h, q, k))


class PathFoxSums(SequenceFeatures):
    """Features of PaTH, then FoX's sums. The carry has the inputs of PaTH's convolution, then the last sums."""

    def __init__(self, directions: SequenceFeatures) -> None:
        super().__init__()
        self.directions = directions
        self.sums = GateSums()

    def forward(
        self,
        features: Features,
        document_starts: DocumentStarts,
        carry: Features,
    ) -> tuple[Features, Features]:
        path_features = features[:NUM_PATH_FEATURES]
        gates = features[NUM_PATH_FEATURES:]
        directions, inputs = self.directions(path_features, document_starts, carry[:1])
        sums, last_sums = self.sums(gates, document_starts, carry[1:])
        return (*directions, *sums), (*inputs, *last_sums)


class PathFoxScores(PathScores):
    """Sum of PaTH's and FoX's bias.

    Attributes:
        weights: Weights of PathScores, then c of all keys' tokens.
    """

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        *path_weights, sums = weights
        path_bias = super().block(tuple(path_weights), rows, columns)
        decay = Decay(sums)
        return path_bias + decay.block(decay.weights, rows, columns)


class PathFoxBias(PathBias):
    """Bias by reflections and gates.

    Attributes:
        scale: Factor on c.
    """

    form = PathFoxScores

    def __init__(self, num_heads: int, num_channels: int, head_dim: int, scale: float) -> None:
        super().__init__(num_heads, num_channels, head_dim)
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        *path_features, sums = features
        path_weights = super().forward(q, k, tuple(path_features))
        return *path_weights, sums * self.scale

    def later_keys(self, weights: tuple[Tensor, ...]) -> Tensor:
        *path_weights, _ = weights
        return super().later_keys(tuple(path_weights))


class PathFox(Path):
    """Reflections and forget gates."""

    equation = "score(i, j) = q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt R + c_i - c_j"
    scaled: ClassVar[bool] = False

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        reflections = super().token_features(tensor_axis)
        gates = ForgetGates(self.config.hidden_size, self.config.num_heads, tensor_axis)
        return PathFoxFeatures(reflections, gates)

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures:
        return PathFoxSums(super().sequence_features(tensor_axis))

    def bias(self, tensor_axis: Axis) -> LayerBias:
        head_dim = self.config.head_dim
        scale = head_dim**-0.5 if self.scaled else 1.0
        return PathFoxBias(self.config.num_heads, self.config.num_kv_heads, head_dim, scale)


class PathFoxScaled(PathFox):
    """Reflections and forget gates, with the whole score divided by sqrt R."""

    equation = "score(i, j) = (q_i^T H_i H_(i-1) ... H_(j+1) k_j + c_i - c_j) / sqrt R"
    scaled = True
