"""The model section: shape of the transformer, and its position encoding."""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, SerializeAsAny, ValidationInfo, model_validator

from megatape.config.kinds import Registered
from megatape.config.layers.layer_mixing import main_encoding
from megatape.config.layers.layer_pattern import NO_ENCODING, LayerKind, LayerPattern, canonical_text, parse_pattern, pattern_of
from megatape.config.limits import Limit, check_limits, load_limits
from megatape.config.section import Fixed, Section, is_recorded
from megatape.config.sections.lora import LoraConfig
from megatape.config.sections.scaling import SCALING_KINDS, ScalingConfig
from megatape.entries import EncodingEntry
from megatape.errors import ConfigError
from megatape.registry import ENCODINGS, MODEL_LIMITS, NORMALIZATIONS

EncodingName = Annotated[str, AfterValidator(Registered(ENCODINGS))]
NormalizationName = Annotated[str, AfterValidator(Registered(NORMALIZATIONS))]
LayersText = Annotated[str, AfterValidator(canonical_text)]


class ModelConfig(Section):
    """Shape of the transformer and its position encoding.

    Attributes:
        encoding: position encoding (docs/model.md)
        scaling: rescaling of the rotary frequencies for longer contexts, `rope` and `tape` only
            (below)
        layers: encoding and attention window of each layer, as a pattern repeated over the layers,
            such as "tape@full, rope@1024*3" (docs/model.md#layers-and-windows); null: all layers
            have the encoding and full attention
        nope_every: n, at least 2: every n-th block has no positions, as with layers "rope*3, nope"
            for 4; null: all blocks have them
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
        sliding_window: number of tokens that a token attends to in every layer, as with layers
            "rope@1024" for 1024; null: all tokens before it
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
    layers: Fixed[LayersText | None] = None
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
    sliding_window: Fixed[PositiveInt | None] = None
    rotary_base: Fixed[float] = Field(10000.0, gt=1)
    attention_bias: Fixed[Literal["none", "qkv", "qkvo"]] = "none"
    qk_norm: Fixed[bool] = False
    normalization: Fixed[NormalizationName] = "rms"
    logit_softcap: Fixed[float | None] = Field(None, gt=0)
    norm_eps: Fixed[float] = Field(1e-5, gt=0)
    init_std: Fixed[float] = Field(0.02, gt=0)
    tie_embeddings: Fixed[bool] = False
    lora: Fixed[LoraConfig | None] = None

    @model_validator(mode="before")
    @classmethod
    def _name_encoding_of_layers(cls, raw: Any) -> Any:
        """Fill in the encoding of a pattern, if only the pattern is given."""
        if not isinstance(raw, dict) or "encoding" in raw or not isinstance(raw.get("layers"), str):
            return raw
        encoding = main_encoding(parse_pattern(raw["layers"]))
        if encoding not in ENCODINGS:
            # The check of the pattern names it.
            return raw
        return raw | {"encoding": encoding}

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
            for model in (self, *self.with_other_encodings()):
                check_limits(model, model_limits())
        return self

    @property
    def traits(self) -> EncodingEntry:
        """Registry entry of the encoding."""
        return ENCODINGS[self.encoding]

    @property
    def pattern(self) -> LayerPattern:
        """Pattern of the layers, for all ways of writing it."""
        return pattern_of(self.encoding, self.layers, self.nope_every, self.sliding_window)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Position encoding and window of each layer."""
        return self.pattern.over(self.num_layers)

    def with_other_encodings(self) -> list[Self]:
        """Return a model for each further encoding of the pattern that has positions, with this encoding in all layers.

        A mixture supports the settings that all of these models support.
        """
        others = [name for name in self.pattern.encodings if name not in (self.encoding, NO_ENCODING)]
        alone: dict[str, object] = {"layers": None, "nope_every": None}
        return [self.model_copy(update=alone | {"encoding": name}) for name in others]

    def without_adapters(self) -> Self:
        """Return the model without LoRA."""
        return self.model_copy(update={"lora": None})

    def with_equal_layers(self) -> Self:
        """Return a model whose layers all have the model's encoding and full attention."""
        return self.model_copy(update={"layers": None, "nope_every": None, "sliding_window": None})

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
        if self.layers is not None:
            parts["layers"] = self.layers
        if self.sliding_window is not None:
            parts["sliding_window"] = self.sliding_window
        names = [f"{name} {value}" for name, value in (parts | self.switches).items()]
        return f"{', '.join(names)} and qk_norm {str(self.qk_norm).lower()}"


def model_limits() -> tuple[Limit[ModelConfig], ...]:
    """Return the limits of the model section, in the order of checking."""
    return load_limits(MODEL_LIMITS)
