"""The model section: shape of the transformer, and its position encoding."""

from typing import Annotated, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, SerializeAsAny, ValidationInfo, model_validator

from megatape.config.kinds import Registered
from megatape.config.limits import Incompatibility, Limit, ValueOf, check_limits, indivisible
from megatape.config.lora import LoraConfig
from megatape.config.scaling import SCALING_KINDS, ScalingConfig
from megatape.config.section import Fixed, Free, Section, is_recorded
from megatape.entries import EncodingEntry
from megatape.errors import ConfigError
from megatape.registry import ENCODINGS, NORMALIZATIONS

EncodingName = Annotated[str, AfterValidator(Registered(ENCODINGS))]
NormalizationName = Annotated[str, AfterValidator(Registered(NORMALIZATIONS))]

ROUNDING = 1e-6  # A share of the channels may round to less or more than a whole number of them.


class ModelConfig(Section):
    """Shape of the transformer and its position encoding.

    Attributes:
        encoding: position encoding (docs/model.md)
        scaling: rescaling of the rotary frequencies for longer contexts, `rope` and `tape` only
            (below)
        nope_every: n, at least 2: every n-th block has no positions; null: all blocks have them
        rotary_fraction: rotating share of a head's channels, for encodings that rotate heads
        attention_scale: log_n multiplies scores by s log n for n visible keys, with a learned s per
            head (scalable softmax); null: no scaling
        num_layers: number of transformer blocks
        hidden_size: D, width of the hidden state
        num_heads: H, number of query heads
        num_kv_heads: L, number of key/value heads, which are also TAPE's position channels; default
            num_heads
        head_dim: R, head size, even for encodings that rotate heads; default hidden_size /
            num_heads
        mlp_size: inner width of the SwiGLU feed-forward network
        vocab_size: number of token ids, at least that of the data's tokenizer
        position_size: I, inner width of TAPE's feed-forward position update; other encodings ignore
            it; default 4 L
        max_positions: maximum sequence length, at least data.sequence_length; training draws
            offsets, and positions of `randpe`, from 0 .. 2 max_positions
        sliding_window: number of tokens that an exported Mistral attends to, set by `megatape
            import`; samples must not be longer, so it does not affect training
        rotary_base: base of the rotary frequencies; a larger one makes them turn more slowly, for
            long contexts
        attention_bias: projections of attention with a bias: qkv for queries, keys and values, qkvo
            for the output as well
        qk_norm: normalize every query and key head, over the head size, before rotating it
        normalization: normalization of the hidden state, and with qk_norm of heads
        logit_softcap: c of c tanh(logits / c), which keeps logits between -c and c; null: no cap
        norm_eps: added to the mean square in RMSNorm
        init_std: standard deviation of the initial weights
        tie_embeddings: share the embedding matrix with the output head
        lora: low-rank adapters, for fine-tuning with few trained weights (below)
    """

    encoding: Fixed[EncodingName] = "tape"
    scaling: Annotated[Fixed[ScalingConfig | None], SerializeAsAny(), BeforeValidator(SCALING_KINDS)] = None
    nope_every: Fixed[int | None] = Field(None, ge=2)
    rotary_fraction: Fixed[float] = Field(1.0, gt=0, le=1)
    attention_scale: Fixed[Literal["log_n"] | None] = None
    num_layers: Fixed[PositiveInt] = Field(le=4096)
    hidden_size: Fixed[PositiveInt] = Field(le=2**20)
    num_heads: Fixed[PositiveInt] = Field(le=2**16)
    num_kv_heads: Fixed[PositiveInt] = Field(default=cast(int, None), le=2**16)
    head_dim: Fixed[PositiveInt] = Field(default=cast(int, None), le=2**16)
    mlp_size: Fixed[PositiveInt] = Field(le=2**24)
    vocab_size: Fixed[PositiveInt] = Field(le=2**24)
    position_size: Fixed[PositiveInt] = Field(default=cast(int, None), le=2**24)
    max_positions: Fixed[PositiveInt] = Field(le=2**31)
    sliding_window: Free[PositiveInt | None] = None
    rotary_base: Fixed[float] = Field(10000.0, gt=1)
    attention_bias: Fixed[Literal["none", "qkv", "qkvo"]] = "none"
    qk_norm: Fixed[bool] = False
    normalization: Fixed[NormalizationName] = "rms"
    logit_softcap: Fixed[float | None] = Field(None, gt=0)
    norm_eps: Fixed[float] = Field(1e-5, gt=0)
    init_std: Fixed[float] = Field(0.02, gt=0)
    tie_embeddings: Fixed[bool] = False
    lora: Fixed[LoraConfig | None] = None

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        self._default("num_kv_heads", self.num_heads)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}: every key/value head "
                "serves the same number of query heads"
            )
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}: set head_dim, or change one "
                "of them"
            )
        self._default("head_dim", self.hidden_size // self.num_heads)
        self._default("position_size", 4 * self.num_kv_heads)
        if not is_recorded(info):
            check_limits(self, ENCODING_LIMITS)
        return self

    @property
    def traits(self) -> EncodingEntry:
        """Registry entry of the encoding."""
        return ENCODINGS[self.encoding]

    @property
    def rotated_channels(self) -> float:
        """Rotating channels per head, for encodings that rotate heads."""
        return self.head_dim * self.rotary_fraction

    @property
    def switches(self) -> dict[str, object]:
        """Settings in use that no architecture in transformers supports."""
        off = {"logit_softcap": None, "nope_every": None, "rotary_fraction": 1.0, "attention_scale": None}
        used = {}
        for name, value_off in off.items():
            value = getattr(self, name)
            if value != value_off:
                used[name] = value
        return used

    @property
    def parts(self) -> str:
        """Parts in which the architectures of transformers differ, as text for errors."""
        parts: dict[str, object] = {
            "encoding": self.encoding,
            "attention_bias": self.attention_bias,
            "normalization": self.normalization,
        }
        names = [f"{name} {value}" for name, value in (parts | self.switches).items()]
        return f"{', '.join(names)} and qk_norm {str(self.qk_norm).lower()}"


def _encodings_with_scaling() -> str:
    names = [name for name, entry in ENCODINGS.items() if entry.scalable]
    return f"remove it, or choose one of {', '.join(names)}"


def _in_some_layers(model: ModelConfig) -> bool:
    return model.nope_every is not None and not model.traits.by_layer


def _with_changed_scores(model: ModelConfig) -> bool:
    return model.attention_scale is not None and model.traits.reads_scores


def _indivisible_sizes(model: ModelConfig) -> str | None:
    traits = model.traits
    encoding = f"encoding {model.encoding}"
    hidden_size = [("hidden_size", model.hidden_size)]
    reason = None
    if traits.rotates:
        reason = indivisible([("head_dim", model.head_dim)], 2, f"2: {encoding} rotates pairs of a head's channels")
    if traits.paired_embedding and reason is None:
        reason = indivisible(hidden_size, 2, f"2: the embeddings of {encoding} are pairs of a sine and a cosine")
    if traits.sliced and reason is None:
        heads = model.num_kv_heads
        slices = f"num_kv_heads {heads}: {encoding} divides it into a slice for each key/value head"
        reason = indivisible(hidden_size, heads, slices)
    return reason


def _too_many_positions(model: ModelConfig) -> str | None:
    maximum = model.traits.max_positions
    if maximum is None or model.max_positions <= maximum:
        return None
    return (
        f"max_positions {model.max_positions} exceeds {maximum}, the most that encoding {model.encoding} can represent: lower "
        "it, or choose another encoding"
    )


def _no_layer_without_positions(model: ModelConfig) -> str | None:
    if model.nope_every is None or model.nope_every <= model.num_layers:
        return None
    return (
        f"nope_every {model.nope_every} is more than num_layers {model.num_layers}, so every layer would have positions: "
        "remove it, or lower it"
    )


def _uneven_rotated_channels(model: ModelConfig) -> str | None:
    if model.rotary_fraction == 1:
        return None
    channels = round(model.rotated_channels)
    is_whole = abs(model.rotated_channels - channels) < ROUNDING
    if is_whole and channels > 0 and channels % 2 == 0:
        return None
    return (
        f"rotary_fraction {model.rotary_fraction} of head_dim {model.head_dim} is {model.rotated_channels:g} channels: it must "
        "be an even number of them, which rotate in pairs"
    )


def _single_scaled_frequency(model: ModelConfig) -> str | None:
    is_scaled = model.scaling is not None and model.scaling.kind == "theta"
    if is_scaled and round(model.rotated_channels) == 2:
        return (
            "scaling of kind theta needs a head_dim above 2, of which more than 2 channels rotate: a single frequency is 1, "
            "whatever the base"
        )
    return None


# Settings that depend on the encoding, whose registry entry claims what it supports.
ENCODING_LIMITS: tuple[Limit[ModelConfig], ...] = (
    _indivisible_sizes,
    Incompatibility[ModelConfig](
        setting=ValueOf("nope_every"),
        case=ValueOf("encoding"),
        when=lambda model: _in_some_layers(model) and model.traits.is_built_in,
        because="which has no positions, or adds them to the embedding, which reaches all layers",
        remedy="remove it, or choose an encoding that layers apply, such as rope",
    ),
    Incompatibility[ModelConfig](
        setting=ValueOf("nope_every"),
        case=ValueOf("encoding"),
        when=lambda model: _in_some_layers(model) and not model.traits.is_built_in,
        because="whose registry entry does not set by_layer=True",
        remedy="set it if layers apply the encoding (docs/own_encodings.md), or remove nope_every",
    ),
    Incompatibility[ModelConfig](
        setting=ValueOf("rotary_fraction"),
        case=ValueOf("encoding"),
        when=lambda model: model.rotary_fraction < 1 and not model.traits.rotates,
        because="which rotates no pairs of a head's channels",
        remedy="remove it, or choose one that does, such as rope",
    ),
    Incompatibility[ModelConfig](
        setting=ValueOf("attention_scale"),
        case=ValueOf("encoding"),
        when=lambda model: _with_changed_scores(model) and model.traits.is_built_in,
        because="whose positions are sums of gates on the scores, which it would change",
        remedy="remove it, or choose another encoding",
    ),
    Incompatibility[ModelConfig](
        setting=ValueOf("attention_scale"),
        case=ValueOf("encoding"),
        when=lambda model: _with_changed_scores(model) and not model.traits.is_built_in,
        because="whose registry entry does not set reads_scores=False",
        remedy="set it if the encoding does not depend on the scores (docs/own_encodings.md), or remove attention_scale",
    ),
    Incompatibility[ModelConfig](
        setting="scaling",
        case=ValueOf("encoding"),
        when=lambda model: model.scaling is not None and not model.traits.scalable,
        because=None,
        remedy=_encodings_with_scaling,
    ),
    _too_many_positions,
    _no_layer_without_positions,
    _uneven_rotated_channels,
    _single_scaled_frequency,
)
