"""The interface of a position encoding. The transformer knows no encoding by name.

An exported model carries the file of its encoding and runs it on one rank, with a cache: on new tokens, the keys of which
follow those of the tokens before. Training is the case of an empty cache.

Shapes as in model/transformer.py; K keys, of the tokens in a cache and the N new ones.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatape.attention.backend import BiasKind, DocumentStarts
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.data.training.positions import Positions
from megatape.distributed.mesh import SINGLE, Axis

Features = tuple[Tensor, ...]  # of one layer, each [B, N, H/T or L/T, any size]: this rank's heads


class EncodingModule(nn.Module):
    """What an encoding adds to a model: its parameters count as the encoding's.

    Parameters are used in `forward`, which takes and returns tensors: ZeRO-3 gathers a module's parameters when it is called,
    and for its backward pass when a gradient reaches its outputs.

    Attributes:
        multiply_adds: Its cost for one token.
        sequence: The sequence-parallel ranks, which divide the heads of SequenceFeatures and of LayerBias.
        context: The context-parallel ranks, which divide tokens (distributed/layout.py: zigzag, states_before_chunks).
    """

    multiply_adds: int = 0
    sequence: Axis = SINGLE
    context: Axis = SINGLE

    def local_heads(self, by_head: Tensor) -> Tensor:
        """What belongs to this rank's heads, of something that has equal numbers of rows for all H/T or L/T heads."""
        return by_head if self.sequence.size == 1 else by_head.chunk(self.sequence.size)[self.sequence.rank]


class PositionEmbedding(EncodingModule):
    """What is added to the embedded tokens for their positions."""

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """The embedded tokens [B, N/T, D] with what encodes their positions [B, N/T]."""
        raise NotImplementedError


class TokenFeatures(EncodingModule):
    """What one layer computes from the content of each token alone, for its rotation and its bias."""

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        """Features of all tokens.

        Args:
            h: The normalized content, [B, N, D]. The backward pass keeps all of it for what reads it, except for ColumnLinear
                layers.
            q: Queries [B, N, H/T, R].
            k: Keys [B, N, L/T, R].
        """
        raise NotImplementedError


class SequenceFeatures(EncodingModule):
    """What one layer computes from the features of earlier tokens: sums or convolutions along the sequence."""

    def forward(self, features: Features, document_starts: DocumentStarts, carry: Features) -> tuple[Features, Features]:
        """The features that rotation and bias read, and the carry for the tokens after these.

        Args:
            features: From TokenFeatures; zero on padding.
            document_starts: [B, N], the first token that each token may see (packed documents), or None.
            carry: From the call for the tokens before these, empty for the first ones: in training always.
        """
        raise NotImplementedError


class LayerBias(EncodingModule):
    """The bias that one layer adds to the scores, with its parameters.

    Attributes:
        pair_multiply_adds: Its cost for one pair of tokens and all heads, beside that for one token.
        form: What attention takes, made of the weights.
        num_transient: How many features, the first ones, it gets of new tokens only. A cache holds the others.
        rewrites_keys: Whether later tokens find other keys, `later_keys`. A cache holds them in float32, because every token
            rewrites them and lower precision would round them each time.
    """

    pair_multiply_adds: int = 0
    num_transient: int = 0
    rewrites_keys: ClassVar[bool] = False
    form: ClassVar[type[ScoreBias]] = DistanceBias

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        """The float32 weights from which the bias of this rank's heads is computed.

        Args:
            q: Queries [B, N, H/T, R], rotated as attention takes them.
            k: Keys [B, K, L/T, R], likewise.
            features: From Encoding.token_features and Encoding.sequence_features, or empty; all but the transient ones of K
                tokens.
        """
        raise NotImplementedError

    def scores(self, weights: tuple[Tensor, ...], state: Tensor | None, past: int) -> ScoreBias:
        """The bias in the form that attention takes.

        Args:
            weights: From `forward`.
            state: From Encoding.state, of the queries' tokens.
            past: Number of the keys in a cache, which come before those of the queries' tokens.
        """
        return self.form(*weights)

    def later_keys(self, weights: tuple[Tensor, ...]) -> Tensor:
        """The keys [B, L, K or more, R] in float32, as tokens after these find them. weights: from `forward`."""
        raise NotImplementedError


class StateInitializer(EncodingModule):
    """What the content adds to the state before any block, where that is not a function of the positions alone."""

    def forward(self, x: Tensor, document_starts: DocumentStarts, carry: Features) -> tuple[Tensor, Features]:
        """The addition to the state, [B, N/T, L, W] in the dtype of x, and the carry for the tokens after these.

        Args:
            x: The embedded tokens [B, N/T, D], zero on padding.
            document_starts: As SequenceFeatures takes it, of all tokens.
            carry: Likewise.
        """
        raise NotImplementedError


class StateUpdate(EncodingModule):
    """The update of the position state by one layer, with its parameters.

    Attributes:
        by_kernel: Whether our own Triton kernels compute it, where it has_kernel.
    """

    by_kernel: bool = False

    def forward(self, state: PositionState, attended_state: Tensor | None, m: Tensor) -> PositionState:
        """The state after this layer, whose delta has the dtype of m.

        Args:
            state: As in Streams (model/block.py).
            attended_state: A e of this rank's query heads, [B, N, H/T, W], if attention moves the state.
            m: The output of the MLP, [B, N/T, D].
        """
        raise NotImplementedError

    def has_kernel(self, device: torch.device) -> bool:
        """Whether our own Triton kernels support this update."""
        return False


class Encoding:
    """A position encoding. This base class does nothing: the model sees positions only through its causal mask."""

    moves_state: ClassVar[bool] = False  # attention moves the state with the same weights as the values
    score_bias: ClassVar[BiasKind] = "none"  # what `bias` adds to the scores
    state_width: int = 0  # W, width of one channel of a state that blocks move
    has_position_tensor: ClassVar[bool] = False  # the state is cosines and sines that rotate queries and keys

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    @property
    def qk_width(self) -> int:
        """Width of the queries and keys that `rotate_qk` returns, not less than R."""
        return self.config.head_dim

    @property
    def carries_state(self) -> bool:
        """Whether blocks move the state; between them each rank holds the part of its own tokens."""
        return self.state_width > 0

    def positions(self, random_offset: bool) -> Positions:
        """The positions that the tokens of a sample get. random_offset: whether training may shift them."""
        return Positions()

    def embedding(self, tensor_axis: Axis) -> PositionEmbedding | None:
        """The embedding of positions of a new model, for encodings that have one."""
        return None

    def state(self, position_ids: Tensor) -> Tensor | None:
        """The state before any block, a constant of the position ids [B, N].

        If blocks move it: float32 [B, N, 1, W], the same for all channels. Otherwise any floating-point number that `rotate_qk`
        or the bias reads.
        """
        return None

    def start(self, tensor_axis: Axis) -> StateInitializer | None:
        """What the content of a new model adds to the state before any block, for encodings whose state starts from it."""
        return None

    def token_features(self, tensor_axis: Axis) -> TokenFeatures | None:
        """The features of single tokens of a new layer, for encodings that depend on the content."""
        return None

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures | None:
        """What a new layer computes from them along the sequence; without it they stay as they are."""
        return None

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None, features: Features) -> tuple[Tensor, Tensor]:
        """The queries and keys of width qk_width from which attention computes scores.

        Attention itself rotates them by a position tensor, so this is for other functions of the `state` of all tokens and of
        the layer's `features`.

        Args:
            q: Queries [B, N, H/T, R].
            k: Keys [B, N, L/T, R].
            state: From `state`.
            features: From `token_features` and `sequence_features`, or empty.
        """
        return q, k

    def bias(self, tensor_axis: Axis) -> LayerBias | None:
        """The bias of a new layer, for encodings that have one."""
        return None

    def update(self, tensor_axis: Axis) -> StateUpdate | None:
        """The update of the state by a new layer, for encodings that change it."""
        return None


def positioned_layers(config: ModelConfig) -> list[int]:
    """The layers that have the model's encoding. With model.nope_every n, every n-th is one of the base class."""
    every = config.nope_every
    return [layer for layer in range(config.num_layers) if every is None or (layer + 1) % every]


def causal_convolution(x: Tensor, weight: Tensor, document_starts: DocumentStarts, before: Features) -> tuple[Tensor, Tensor]:
    """A short causal convolution along the sequence, one for each channel of a head.

    The sum of each token's and the tokens' before it, weighted, and the inputs that the tokens after these need.

    Args:
        x: [B, N, heads, size].
        weight: [heads, size, width], the last for the token itself.
        document_starts: [B, N], the first token that each token may see, or None.
        before: the inputs that the call for the tokens before these has returned; empty for the first ones.

    Returns:
        [B, N, heads, size], without a share of other documents, and [B, width - 1, heads, size].
    """
    *earlier, own = weight.unbind(-1)
    whole = torch.cat([*before, x], dim=1) if before else F.pad(x, (0, 0, 0, 0, len(earlier), 0))
    total = x * own
    length = x.shape[1]
    for distance, of_distance in enumerate(reversed(earlier), start=1):
        shifted = whole[:, len(earlier) - distance : length + len(earlier) - distance]
        if document_starts is not None:
            shifted = shifted * (torch.arange(length, device=x.device) - distance >= document_starts)[..., None, None]
        total = total + shifted * of_distance
    return total, whole[:, length:]


# Name of StateInitializer in files of encodings written for version 0.1. Exports carry this module, so the name stands here.
StateStart = StateInitializer
