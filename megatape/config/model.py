"""The model section: shape of the transformer, and its position encoding."""

import math
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, Field, PositiveInt, ValidationInfo, model_validator

from megatape.config.section import Fixed, Free, JsonList, Registered, Section, is_recorded
from megatape.errors import ConfigError
from megatape.registry import ENCODINGS, NORMALIZATIONS

EncodingName = Annotated[str, AfterValidator(Registered(ENCODINGS))]
NormalizationName = Annotated[str, AfterValidator(Registered(NORMALIZATIONS))]

LoraTarget = Literal["query", "key", "value", "output", "gate", "up", "down"]

# What each kind of scaling takes beside its factor, and the defaults; ... stands for a field that is required.
_YARN = {"original_length": ..., "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "attention_factor": None}
_LLAMA3 = {"original_length": ..., "low_freq_factor": ..., "high_freq_factor": ...}
SCALINGS: dict[str, dict[str, Any]] = {"linear": {}, "theta": {}, "yarn": _YARN, "llama3": _LLAMA3}


class ScalingConfig(Section):
    """Rescaling of the rotary frequencies for a context `factor` times longer (`rope` and `tape`).

    Attributes:
        kind: linear divides positions by the factor, theta raises the base (NTK-aware), yarn and
            llama3 scale each frequency by its wavelength
        factor: how many times longer the context becomes
        original_length: the longest sequence before scaling (yarn, llama3: required)
        beta_fast: frequencies that turn more often within original_length stay (yarn; default 32)
        beta_slow: frequencies that turn less often are divided by the factor (yarn; default 1)
        truncate: round the range between beta_fast and beta_slow to whole planes (yarn; default
            true)
        attention_factor: modulus of both rotations (yarn; default 0.1 ln(factor) + 1)
        low_freq_factor: frequencies that turn less often within original_length are divided by the
            factor (llama3: required)
        high_freq_factor: frequencies that turn more often stay (llama3: required)
    """

    kind: Fixed[Literal["linear", "theta", "yarn", "llama3"]]
    factor: Fixed[float] = Field(gt=1)
    original_length: Fixed[int | None] = Field(None, gt=0)
    beta_fast: Fixed[float | None] = Field(None, gt=0)
    beta_slow: Fixed[float | None] = Field(None, gt=0)
    truncate: Fixed[bool | None] = None
    attention_factor: Fixed[float | None] = Field(None, gt=0)
    low_freq_factor: Fixed[float | None] = Field(None, gt=0)
    high_freq_factor: Fixed[float | None] = Field(None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        takes: dict[str, Any] = {"kind": ..., "factor": ...} | SCALINGS[self.kind]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name not in takes and value is not None:
                kinds = " and ".join(kind for kind, fields in SCALINGS.items() if name in fields)
                raise ConfigError(f"{name} {value} has no effect with scaling of kind {self.kind}, but with {kinds}: remove it")
            if takes.get(name) is ... and value is None:
                raise ConfigError(f"scaling of kind {self.kind} needs {name}: {field.description}")
            self._default(name, takes.get(name))
        for low, high in (("beta_slow", "beta_fast"), ("low_freq_factor", "high_freq_factor")):
            least = getattr(self, low)
            most = getattr(self, high)
            if least is not None and least >= most:
                raise ConfigError(f"{low} {least} is not below {high} {most}: exchange them")
        return self


class LoraConfig(Section):
    """Low-rank adapters beside linear layers (docs/finetune.md).

    Attributes:
        rank: r, width of an adapter
        alpha: adapters are multiplied by alpha / rank
        dropout: probability with which training sets each input of an adapter to zero
        targets: layers with an adapter, in every block: query, key, value, output of attention,
            gate, up, down of the MLP
    """

    rank: Fixed[PositiveInt] = Field(le=2**16)
    alpha: Fixed[float] = Field(gt=0)
    dropout: Fixed[float] = Field(0.0, ge=0, lt=1)
    targets: Fixed[JsonList[LoraTarget]] = Field(("query", "key", "value", "output"), min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if doubled := [target for target in self.targets if self.targets.count(target) > 1]:
            raise ConfigError(f"targets names {doubled[0]} twice: remove one")
        return self


class ModelConfig(Section):
    """Shape of the transformer and its position encoding.

    Attributes:
        encoding: position encoding (docs/model.md)
        scaling: rescaling of the rotary frequencies, `rope` and `tape` only (below)
        nope_every: n: every n-th block has no positions, at least 2; null: all have them
        rotary_fraction: share of a head's channels that rotate, for encodings that rotate heads
        attention_scale: log_n multiplies scores by s log n for n visible keys, with a learned s for each
            head (scalable softmax); null: neither
        num_layers: number of transformer blocks
        hidden_size: C, width of the hidden state
        num_heads: H, query heads
        num_kv_heads: L, key/value heads, which are also TAPE's position channels; default num_heads
        head_dim: R, head size; even for encodings that rotate heads; default hidden_size /
            num_heads
        mlp_size: inner width of the SwiGLU feed-forward network
        vocab_size: number of token ids, at least as many as the data's tokenizer has
        position_size: I, inner width of TAPE's feed-forward position update; other encodings ignore
            it; default 4 L
        max_positions: longest sequence the model is meant for; training offsets and `randpe`
            positions are drawn from 0 .. 2 max_positions
        sliding_window: last tokens that an exported Mistral attends to, as `megatape import` found
            it; samples are no longer, so training never reaches it
        rotary_base: base of the rotary frequencies
        attention_bias: projections of attention that have a bias: queries, keys and values, or the
            output too
        qk_norm: normalization of every query and key head, over the head size, before it is rotated
        normalization: of the content, and with qk_norm of heads
        logit_softcap: c of c tanh(logits / c), which keeps logits within -c and c; null: logits as they
            are
        norm_eps: added to the mean square in RMSNorm
        init_std: standard deviation of the initial weights
        tie_embeddings: share the embedding matrix with the output head
        lora: low-rank adapters (below)
    """

    encoding: Fixed[EncodingName] = "tape"
    scaling: Fixed[ScalingConfig | None] = None
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
            self._check_encoding()
        return self

    def _check_encoding(self) -> None:
        """Raise ConfigError for settings that the encoding does not support."""
        encoding = ENCODINGS[self.encoding]
        rotated = self.head_dim * self.rotary_fraction
        scalable = ", ".join(name for name, entry in ENCODINGS.items() if entry.scalable)
        in_pairs = abs(rotated - round(rotated)) < 1e-6 and round(rotated) % 2 == 0 < round(rotated)
        unclaimed = {
            f"nope_every {self.nope_every} is not for encoding {self.encoding}, whose registry entry does not set "
            "by_layer=True: set it if layers apply the encoding (docs/own_encodings.md), or remove nope_every": (
                self.nope_every is not None and not encoding.by_layer and not encoding.is_built_in
            ),
            f"attention_scale {self.attention_scale} is not for encoding {self.encoding}, whose registry entry does not set "
            "reads_scores=False: set it if the encoding does not depend on the scores (docs/own_encodings.md), or remove "
            "attention_scale": self.attention_scale is not None and encoding.reads_scores and not encoding.is_built_in,
        }
        refusals = unclaimed | {
            f"head_dim {self.head_dim} is odd: encoding {self.encoding} rotates pairs of a head's channels, so head_dim must "
            "be even": self.head_dim % 2 and encoding.rotates,
            f"hidden_size {self.hidden_size} is odd: the embeddings of encoding {self.encoding} are pairs of a sine and a "
            "cosine, so hidden_size must be even": self.hidden_size % 2 and encoding.paired_embedding,
            f"hidden_size {self.hidden_size} is not a multiple of num_kv_heads {self.num_kv_heads}: encoding {self.encoding} "
            "divides it into a slice for each key/value head": self.hidden_size % self.num_kv_heads and encoding.sliced,
            f"max_positions {self.max_positions} exceeds {encoding.max_positions}, the most that encoding {self.encoding} can "
            "represent: lower it, or choose another encoding": self.max_positions > (encoding.max_positions or math.inf),
            f"nope_every {self.nope_every} is not for encoding {self.encoding}, which has no positions, or adds them to the "
            "embedding, which reaches all layers: remove it, or choose an encoding that layers apply, such as rope": (
                self.nope_every is not None and not encoding.by_layer
            ),
            f"nope_every {self.nope_every} is more than num_layers {self.num_layers}, so every layer would have positions: "
            "remove it, or lower it": self.nope_every is not None and self.nope_every > self.num_layers,
            f"rotary_fraction {self.rotary_fraction} is not for encoding {self.encoding}, which rotates no pairs of a head's "
            "channels: remove it, or choose one that does, such as rope": self.rotary_fraction < 1 and not encoding.rotates,
            f"rotary_fraction {self.rotary_fraction} of head_dim {self.head_dim} is {rotated:g} channels: it must be an even "
            "number of them, which rotate in pairs": self.rotary_fraction < 1 and not in_pairs,
            f"attention_scale {self.attention_scale} is not for encoding {self.encoding}, whose positions are sums of gates on "
            "the scores, which it would change: remove it, or choose another encoding": (
                self.attention_scale is not None and encoding.reads_scores
            ),
            f"scaling is not for encoding {self.encoding}: remove it, or choose one of {scalable}": (
                self.scaling is not None and not encoding.scalable
            ),
            "scaling of kind theta needs a head_dim above 2, of which more than 2 channels rotate: a single frequency is 1, "
            "whatever the base": self.scaling is not None and self.scaling.kind == "theta" and round(rotated) == 2,
        }
        for reason, unfit in refusals.items():
            if unfit:
                raise ConfigError(reason)

    @property
    def switches(self) -> dict[str, object]:
        """What is on of the settings that no architecture of transformers shares with ours."""
        off = {"logit_softcap": None, "nope_every": None, "rotary_fraction": 1.0, "attention_scale": None}
        return {name: getattr(self, name) for name, value in off.items() if getattr(self, name) != value}

    @property
    def parts(self) -> str:
        """The parts by which architectures of transformers differ, as errors name them."""
        parts = {name: getattr(self, name) for name in ("encoding", "attention_bias", "normalization")} | self.switches
        return f"{', '.join(f'{name} {value}' for name, value in parts.items())} and qk_norm {str(self.qk_norm).lower()}"
