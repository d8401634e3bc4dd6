"""Interface of position encodings. The transformer knows no encoding by name.

An encoding overrides those methods of `Encoding` that it needs. In the order of the forward pass:

    embedding            adds positions to the embedded tokens              (sinusoidal)
    state, start         make the position state before the first layer     (rope, tape)
    token_features       read the content of single tokens, in a layer      (fox, path)
    sequence_features    sum or convolve these along the sequence           (fox, path)
    rotate_qk            changes queries and keys                           (xpos, pope)
    bias                 adds to the scores                                 (alibi, t5, cope, fire)
    update               moves the position state after a layer             (tape)

By default, none of them does anything.

Exported models carry the file of their encoding, and run it on one rank with a cache. Then a call only gets new tokens, whose
keys follow the cached keys of earlier tokens. While training, the cache is empty.

Shapes as in model/transformer.py. K is the number of keys: cached ones and those of the N new tokens.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from megatape.attention.backend import BiasKind, DocumentStarts
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.config.layers.layer_pattern import NO_ENCODING
from megatape.data.training.batches.positions import Positions
from megatape.distributed.mesh import SINGLE, Axis

# Features of one layer, for this rank's heads: each [B, N, H/T or L/T, any size].
Features = tuple[Tensor, ...]


class EncodingModule(nn.Module):
    """Base class of modules that an encoding adds to a model. Their parameters belong to the group "position".

    Only use parameters in `forward`, and let it take and return tensors: ZeRO stage 3 gathers a module's parameters when the
    module is called, and again when a gradient reaches its outputs.

    Attributes:
        multiply_adds: Multiply-adds per token.
        sequence: Sequence-parallel ranks, which split the heads of SequenceFeatures and LayerBias.
        context: Context-parallel ranks, which split the tokens (distributed/layout.py: zigzag, states_before_chunks).
    """

    multiply_adds: int = 0
    sequence: Axis = SINGLE
    context: Axis = SINGLE

    def set_ranks(self, sequence: Axis, context: Axis) -> None:
        """Set the ranks sharing samples. The model calls this once, because constructors only get the tensor-parallel ranks.

        Args:
            sequence: Sequence-parallel ranks.
            context: Context-parallel ranks.
        """
        self.sequence = sequence
        self.context = context

    def local_heads(self, by_head: Tensor) -> Tensor:
        """Return the rows for this sequence-parallel rank's heads. `by_head` has equally many rows for each head."""
        if self.sequence.size == 1:
            return by_head
        return by_head.chunk(self.sequence.size)[self.sequence.rank]


class PositionEmbedding(EncodingModule):
    """Embedding of positions, added to that of the tokens."""

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
    """Features that one layer computes from each token's content alone, for its rotation or bias."""

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        """Compute the features of all tokens.

        Args:
            h: Normalized content of all ranks' tokens [B, N, D]. Read it by ColumnLinear layers or by nn.linear_function.linear
                where possible: other operations save it whole for the backward pass, on every rank.
            q: Queries [B, N, H/T, R].
            k: Keys [B, N, L/T, R].

        Returns:
            Features of this rank's heads, see Features.
        """
        raise NotImplementedError


class SequenceFeatures(EncodingModule):
    """Sums or convolutions of token features along the sequence."""

    def forward(
        self,
        features: Features,
        document_starts: DocumentStarts,
        carry: Features,
    ) -> tuple[Features, Features]:
        """Compute the features that rotation and bias read, and the carry for the next tokens.

        Args:
            features: Features from TokenFeatures. Zero on padding.
            document_starts: Index of the first token in each token's document, [B, N], or None.
            carry: Carry from the previous tokens' call. Empty for the first tokens, so always while training.

        Returns:
            The features and the carry.
        """
        raise NotImplementedError


class LayerBias(EncodingModule):
    """Bias that one layer adds to the scores.

    `forward` computes weights from parameters and features, and `scores` makes of them the bias that attention takes. Attention
    then computes the bias block by block, in both passes, so the bias of all pairs of tokens never exists at once.

    Attributes:
        pair_multiply_adds: Multiply-adds per pair of tokens, summed over all heads, in addition to `multiply_adds` per token.
        form: Class of the bias that attention takes.
        num_transient: Number of leading features that `forward` gets for new tokens only. A cache holds the others.
        rewrites_keys: Whether later tokens see other keys, namely `later_keys`. A cache holds those in float32, because each
            token rewrites them, and lower precision would round them every time.
    """

    pair_multiply_adds: int = 0
    num_transient: int = 0
    rewrites_keys: ClassVar[bool] = False
    form: ClassVar[type[ScoreBias]] = DistanceBias

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        """Compute the bias's float32 weights for this rank's heads.

        Args:
            q: Queries [B, N, H/T, R] as attention gets them, so after rotate_qk.
            k: Keys [B, K, L/T, R], likewise.
            features: Features of the layer, or empty: transient ones of the N new tokens, others of all K tokens.
        """
        raise NotImplementedError

    def scores(self, weights: tuple[Tensor, ...], state: Tensor | None, past: int) -> ScoreBias:
        """Return the bias that attention takes.

        Args:
            weights: Weights from `forward`.
            state: Encoding.state of the queries' tokens.
            past: Number of cached keys, which precede those of the queries' tokens.
        """
        return self.form(*weights)

    def later_keys(self, weights: tuple[Tensor, ...]) -> Tensor:
        """Return the keys for later tokens, float32 [B, L, K or more, R], given the weights from `forward`."""
        raise NotImplementedError


class StateInitializer(EncodingModule):
    """Content-dependent part of the initial state, added to Encoding.state."""

    def forward(
        self,
        x: Tensor,
        document_starts: DocumentStarts,
        carry: Features,
    ) -> tuple[Tensor, Features]:
        """Compute the addition to the state, [B, N/T, L, W] in the dtype of x, and the carry for the next tokens.

        Args:
            x: Embedded tokens [B, N/T, D]. Zero on padding.
            document_starts: Index of the first token in each token's document, for all tokens: [B, N], or None.
            carry: Carry from the previous tokens' call. Empty for the first tokens.
        """
        raise NotImplementedError


class StateUpdate(EncodingModule):
    """Update of the position state at the end of one layer.

    Attributes:
        by_kernel: Whether to use our Triton kernels if `has_kernel`.
    """

    by_kernel: bool = False

    def use_kernels(self, by_kernel: bool) -> None:
        """Choose whether our Triton kernels compute the update if they support it."""
        self.by_kernel = by_kernel

    def forward(self, state: PositionState, attended_state: Tensor | None, m: Tensor) -> PositionState:
        """Compute the state after this layer. Its delta gets the dtype of m.

        Args:
            state: State before this layer, see Streams (model/block.py).
            attended_state: State averaged by attention, A e, for this rank's query heads, [B, N, H/T, W], or None if attention
                does not move the state.
            m: Output of the MLP, [B, N/T, D].
        """
        raise NotImplementedError

    def has_kernel(self, device: torch.device) -> bool:
        """Whether our Triton kernels support this update on a device."""
        return False


class Encoding:
    """Position encoding. This base class does nothing, so the model only sees positions through its causal mask.

    Attributes:
        equation: Scores and updates of the state, in plain text, for the page about a suite. Each class states its own.
        moves_state: Whether attention averages the state: `update` reads A e, the state averaged with the weights of the
            values. A layer asks attention for it (`averages_state`), unless no later layer reads the state.
        score_bias: Kind of bias added to the scores: "none", by "distance" alone, by "decay" (attention.bias.Decay), or by
            "pair" of tokens.
        state_width: Width W of each channel of the state if blocks update it, otherwise 0.
        has_position_tensor: Whether the state is a position tensor, which attention rotates queries and keys by.
    """

    equation: ClassVar[str] = ""
    moves_state: ClassVar[bool] = False
    score_bias: ClassVar[BiasKind] = "none"
    state_width: int = 0
    has_position_tensor: ClassVar[bool] = False

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    @property
    def qk_width(self) -> int:
        """Width of queries and keys after `rotate_qk`, at least R."""
        return self.config.head_dim

    @property
    def carries_state(self) -> bool:
        """Whether blocks update the state, with or without A e (`moves_state`). Each rank then has its own tokens' updates."""
        return self.state_width > 0

    def positions(self, random_offset: bool) -> Positions:
        """Return the sampler of position ids. With `random_offset`, training may shift them."""
        return Positions()

    def embedding(self, tensor_axis: Axis) -> PositionEmbedding | None:
        """Make the embedding of positions for a new model, or None."""
        return None

    def state(self, position_ids: Tensor) -> Tensor | None:
        """Return the state before the first block, or None.

        A state that blocks update is float32 [B, N, 1, W], the same for all channels. Otherwise it can be any floating-point
        tensor that `rotate_qk` or the bias reads.

        Args:
            position_ids: Position ids [B, N].
        """
        return None

    def start(self, tensor_axis: Axis) -> StateInitializer | None:
        """Make the module that adds the content-dependent part of the state, for a new model, or None."""
        return None

    def token_features(self, tensor_axis: Axis) -> TokenFeatures | None:
        """Make the features of single tokens for a new layer, or None."""
        return None

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures | None:
        """Make the features along the sequence for a new layer, or None to use the token features themselves."""
        return None

    def rotate_qk(
        self,
        q: Tensor,
        k: Tensor,
        state: Tensor | None,
        features: Features,
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys, or change them in any other way.

        Rotating by a position tensor is left to attention. This is for other functions of the state and the layer's features.

        Args:
            q: Queries [B, N, H/T, R].
            k: Keys [B, N, L/T, R].
            state: State of all tokens from `state`.
            features: Features of the layer, or empty.

        Returns:
            Queries [B, N, H/T, qk_width] and keys [B, N, L/T, qk_width].
        """
        return q, k

    def bias(self, tensor_axis: Axis) -> LayerBias | None:
        """Make the bias for a new layer, or None."""
        return None

    def update(self, tensor_axis: Axis) -> StateUpdate | None:
        """Make the update of the state for a new layer, or None."""
        return None


# Old name of StateInitializer, for encodings written for version 0.1. It is defined here because exports carry this file.
StateStart = StateInitializer


def positioned_layers(config: ModelConfig) -> list[int]:
    """Return the indices of layers with the model's encoding. Only these read the updated state, and update it.

    With model.layers, other layers have other encodings, which read the state as it started. With model.nope_every n, every
    n-th layer has none.
    """
    return [layer for layer, kind in enumerate(config.layer_kinds) if kind.encoding == config.encoding]


def encodings_by_layer(encoding: Encoding, make: Callable[[str], Encoding]) -> list[Encoding]:
    """Return the encoding of each layer. Layers with the model's encoding share one object, as do all others by name.

    Args:
        encoding: The model's encoding.
        make: Makes another encoding of the same model by its name.
    """
    config = encoding.config
    by_name: dict[str, Encoding] = {NO_ENCODING: Encoding(config), config.encoding: encoding}
    for kind in config.layer_kinds:
        if kind.encoding not in by_name:
            by_name[kind.encoding] = make(kind.encoding)
    return [by_name[kind.encoding] for kind in config.layer_kinds]
