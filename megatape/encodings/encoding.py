"""Interface of position encodings. The transformer knows no encoding by name.

An exported model carries the file of its encoding, and runs it on one rank, with a cache. A call then has new tokens only, and
their keys follow those of earlier tokens, which are in the cache. In training the cache is empty.

Shapes as in model/transformer.py. K is the number of keys, those in a cache and those of the N new tokens.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from megatape.attention.backend import BiasKind, DocumentStarts
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.data.training.positions import Positions
from megatape.distributed.mesh import SINGLE, Axis

# Features of one layer for this rank's heads, each [B, N, H/T or L/T, any size]
Features = tuple[Tensor, ...]


class EncodingModule(nn.Module):
    """Base class of the modules that an encoding adds to a model. Their parameters belong to the group "position".

    Use parameters in `forward` only, and let it take and return tensors: ZeRO-3 gathers the parameters of a module when it is
    called, and for its backward pass when a gradient reaches its outputs.

    Attributes:
        multiply_adds: Number of multiply-adds for one token.
        sequence: Sequence-parallel ranks, which divide the heads of SequenceFeatures and of LayerBias.
        context: Context-parallel ranks, which divide tokens (distributed/layout.py: zigzag, states_before_chunks).
    """

    multiply_adds: int = 0
    sequence: Axis = SINGLE
    context: Axis = SINGLE

    def set_ranks(self, sequence: Axis, context: Axis) -> None:
        """Set the ranks that divide samples. The model does so once, because constructors take the tensor-parallel ranks only.

        Args:
            sequence: Sequence-parallel ranks.
            context: Context-parallel ranks.
        """
        self.sequence = sequence
        self.context = context

    def local_heads(self, by_head: Tensor) -> Tensor:
        """Return the rows of this rank's heads. `by_head` has the same number of rows for each of the H/T or L/T heads."""
        if self.sequence.size == 1:
            return by_head
        return by_head.chunk(self.sequence.size)[self.sequence.rank]


class PositionEmbedding(EncodingModule):
    """Embedding of positions, added to the embedded tokens."""

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Add the embedding of positions.

        Args:
            x: Embedded tokens [B, N/T, D].
            position_ids: Position ids [B, N/T].

        Returns:
            Embedded tokens [B, N/T, D].
        """
        raise NotImplementedError


class TokenFeatures(EncodingModule):
    """Features of one layer from the content of each token alone, for its rotation and its bias."""

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        """Compute the features of all tokens.

        Args:
            h: Normalized content [B, N, D]. The backward pass keeps all of it for the layers that read it, unless these are
                ColumnLinear.
            q: Queries [B, N, H/T, R].
            k: Keys [B, N, L/T, R].
        """
        raise NotImplementedError


class SequenceFeatures(EncodingModule):
    """Features of one layer from those of earlier tokens: sums or convolutions along the sequence."""

    def forward(
        self,
        features: Features,
        document_starts: DocumentStarts,
        carry: Features,
    ) -> tuple[Features, Features]:
        """Compute the features that rotation and bias read, and the carry for the next tokens.

        Args:
            features: Features from TokenFeatures. Zero on padding.
            document_starts: Index of the first token of each token's document, [B, N], or None.
            carry: Carry from the call for the tokens before. Empty for the first tokens, so always in training.
        """
        raise NotImplementedError


class LayerBias(EncodingModule):
    """Bias that one layer adds to the scores, with its parameters.

    Attributes:
        pair_multiply_adds: Number of multiply-adds for one pair of tokens and all heads, in addition to those for one token.
        form: Class of the bias that attention takes, made of the weights.
        num_transient: Number of features, the first ones, that `forward` gets for new tokens only. A cache holds the others.
        rewrites_keys: Whether later tokens see other keys, those of `later_keys`. A cache holds them in float32: every token
            rewrites them, and lower precision would round them each time.
    """

    pair_multiply_adds: int = 0
    num_transient: int = 0
    rewrites_keys: ClassVar[bool] = False
    form: ClassVar[type[ScoreBias]] = DistanceBias

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        """Compute the float32 weights of the bias for this rank's heads.

        Args:
            q: Queries [B, N, H/T, R], rotated as for attention.
            k: Keys [B, K, L/T, R], rotated as for attention.
            features: Features from Encoding.token_features and Encoding.sequence_features, or empty. The transient ones are
                those of N tokens, the others those of K tokens.
        """
        raise NotImplementedError

    def scores(self, weights: tuple[Tensor, ...], state: Tensor | None, past: int) -> ScoreBias:
        """Return the bias that attention takes.

        Args:
            weights: Weights from `forward`.
            state: State of the queries' tokens from Encoding.state.
            past: Number of keys in a cache, before those of the queries' tokens.
        """
        return self.form(*weights)

    def later_keys(self, weights: tuple[Tensor, ...]) -> Tensor:
        """Return the keys that later tokens see, [B, L, K or more, R] in float32. `weights` come from `forward`."""
        raise NotImplementedError


class StateInitializer(EncodingModule):
    """Part of the initial state that depends on the content, added to Encoding.state."""

    def forward(
        self,
        x: Tensor,
        document_starts: DocumentStarts,
        carry: Features,
    ) -> tuple[Tensor, Features]:
        """Compute the addition to the state, [B, N/T, L, W] in the dtype of x, and the carry for the next tokens.

        Args:
            x: Embedded tokens [B, N/T, D]. Zero on padding.
            document_starts: Index of the first token of each token's document for all tokens, [B, N], or None.
            carry: Carry from the call for the tokens before. Empty for the first tokens.
        """
        raise NotImplementedError


class StateUpdate(EncodingModule):
    """Update of the position state by one layer, with its parameters.

    Attributes:
        by_kernel: Whether to use our own Triton kernels if `has_kernel`.
    """

    by_kernel: bool = False

    def use_kernels(self, by_kernel: bool) -> None:
        """Choose whether our own Triton kernels compute the update where they can."""
        self.by_kernel = by_kernel

    def forward(self, state: PositionState, attended_state: Tensor | None, m: Tensor) -> PositionState:
        """Compute the state after this layer, whose delta has the dtype of m.

        Args:
            state: State before this layer, see Streams (model/block.py).
            attended_state: A e of this rank's query heads, [B, N, H/T, W], if attention moves the state.
            m: Output of the MLP, [B, N/T, D].
        """
        raise NotImplementedError

    def compile_in_training(self, **options: Any) -> None:
        """Let torch.compile fuse `forward` in training. Hooks of the module stay outside of what is compiled.

        Args:
            options: Options of torch.compile.
        """
        plain = self.forward
        compiled = torch.compile(plain, **options)

        def forward(*args: Any) -> Any:
            if self.training:
                return compiled(*args)
            return plain(*args)

        self.forward = forward  # type: ignore[assignment, method-assign]

    def has_kernel(self, device: torch.device) -> bool:
        """Whether our own Triton kernels support this update on a device."""
        return False


class Encoding:
    """Position encoding. This base class does nothing: the model sees positions only through its causal mask.

    Attributes:
        moves_state: Whether attention averages the state with the same weights as the values.
        score_bias: Kind of bias that `bias` adds to the scores.
        state_width: Width W of one channel of a state that blocks move, 0 for other encodings.
        has_position_tensor: Whether the state is a position tensor, by which attention rotates queries and keys.
    """

    moves_state: ClassVar[bool] = False
    score_bias: ClassVar[BiasKind] = "none"
    state_width: int = 0
    has_position_tensor: ClassVar[bool] = False

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    @property
    def qk_width(self) -> int:
        """Width of the queries and keys that `rotate_qk` returns, at least R."""
        return self.config.head_dim

    @property
    def carries_state(self) -> bool:
        """Whether blocks move the state. Between blocks, each rank then holds the part of its own tokens."""
        return self.state_width > 0

    def positions(self, random_offset: bool) -> Positions:
        """Return the sampler of position ids. `random_offset` tells whether training may shift them."""
        return Positions()

    def embedding(self, tensor_axis: Axis) -> PositionEmbedding | None:
        """Return the embedding of positions of a new model, or None."""
        return None

    def state(self, position_ids: Tensor) -> Tensor | None:
        """Return the state before any block, or None.

        If blocks move it, it is float32 [B, N, 1, W], the same for all channels. Otherwise it may be any floating-point tensor
        that `rotate_qk` or the bias reads.

        Args:
            position_ids: Position ids [B, N].
        """
        return None

    def start(self, tensor_axis: Axis) -> StateInitializer | None:
        """Return the module of a new model that adds the part of the state that depends on the content, or None."""
        return None

    def token_features(self, tensor_axis: Axis) -> TokenFeatures | None:
        """Return the features of a new layer that depend on single tokens, or None."""
        return None

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures | None:
        """Return the features of a new layer that are computed from them along the sequence, or None to keep them."""
        return None

    def rotate_qk(
        self,
        q: Tensor,
        k: Tensor,
        state: Tensor | None,
        features: Features,
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys, or change them in another way. They get the width `qk_width`.

        Attention itself rotates them by a position tensor, so this is for other functions of the state of all tokens and of the
        layer's features.

        Args:
            q: Queries [B, N, H/T, R].
            k: Keys [B, N, L/T, R].
            state: State from `state`.
            features: Features from `token_features` and `sequence_features`, or empty.
        """
        return q, k

    def bias(self, tensor_axis: Axis) -> LayerBias | None:
        """Return the bias of a new layer, or None."""
        return None

    def update(self, tensor_axis: Axis) -> StateUpdate | None:
        """Return the update of the state by a new layer, or None."""
        return None


# Name of StateInitializer in files of encodings written for version 0.1. Exports carry this module, so the name stands here.
StateStart = StateInitializer


def positioned_layers(config: ModelConfig) -> list[int]:
    """Return the layers with the model's encoding. With model.nope_every n, every n-th layer has the base class instead."""
    layers = list(range(config.num_layers))
    if config.nope_every is None:
        return layers
    return [layer for layer in layers if (layer + 1) % config.nope_every]
