"""Configuration of MegaTAPE models for transformers."""

from types import SimpleNamespace
from typing import Any, ClassVar

from transformers import PreTrainedConfig
from transformers.utils.versions import require_version

from megatape.config.layers.layer_pattern import NO_ENCODING, LayerKind, LayerPattern, pattern_of

from .encodings import ENCODINGS

# Before this version, configurations are not dataclasses, and masks need cache_position.
OLDEST_TRANSFORMERS = "5.4"
require_version(f"transformers>={OLDEST_TRANSFORMERS}", "MegaTAPE's exported models need it: pip install -U transformers")
# Supported values of rope_type in rope_parameters.
ROPE_TYPES = ("default", "linear", "yarn", "llama3")


class TapeConfig(PreTrainedConfig):
    """Configuration of a language model with TAPE or another position encoding. Fields not listed here are as in LlamaConfig.

    Encodings read the fields by the names used in training (attribute_map).

    Args:
        encoding: Name of the position encoding in encodings.py, by default the first one.
        layers: Encoding and window of each layer, as a pattern such as "tape@full, rope@1024*3" (layer_pattern.py). None: all
            layers have the encoding and full attention.
        nope_every: Every n-th layer has no positions. None: all layers have positions.
        rotary_fraction: Fraction of the head size that rotates.
        attention_scale: "log_n" multiplies scores by s log n for n keys, with a parameter s per head.
        position_size: Inner width of TAPE's feed-forward position update. The position channels are the key/value heads.
        position_length: Number of tokens that RandPE distributes over its random positions, unless a text is longer.
        position_seed: Seed of RandPE's positions.
        rope_parameters: rope_theta, the base of the rotary frequencies that positions start from, and their scaling with
            rope_type "linear", "yarn" or "llama3".
        attention_bias: Attention projections with a bias: "none", "qkv" or "qkvo".
        qk_norm: Whether to normalize queries and keys over the head size before rotating them.
        logit_softcap: c replaces logits by c tanh(logits / c).
    """

    model_type = "tape"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {
        "mlp_size": "intermediate_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "max_positions": "max_position_embeddings",
        "norm_eps": "rms_norm_eps",
        "init_std": "initializer_range",
        "tie_embeddings": "tie_word_embeddings",
    }

    # __post_init__ replaces None by the default value.
    encoding: str = None
    vocab_size: int = 32000
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int = None
    head_dim: int = None
    layers: str | None = None
    nope_every: int | None = None
    rotary_fraction: float = 1.0
    attention_scale: str | None = None
    position_size: int = None
    position_length: int = None
    position_seed: int = 0
    max_position_embeddings: int = 1024
    rope_parameters: dict[str, Any] = None
    attention_bias: str = "none"
    qk_norm: bool = False
    logit_softcap: float | None = None
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    use_cache: bool = True
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        if self.encoding is None:
            self.encoding = next(iter(ENCODINGS))
        if self.encoding not in ENCODINGS:
            raise ValueError(f"encoding is {self.encoding!r}, but there is only code for {', '.join(ENCODINGS)}")
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.position_size is None:
            self.position_size = 4 * self.num_key_value_heads
        if self.position_length is None:
            self.position_length = self.max_position_embeddings
        # transformers fills rope_parameters here.
        super().__post_init__(**kwargs)
        self._check()

    def _check(self) -> None:
        """Raise ValueError for a value that is not supported."""
        kind = self.rope_parameters["rope_type"]
        if kind not in ROPE_TYPES:
            raise ValueError(
                f"rope_parameters has rope_type {kind!r}: use 'default' (with any rope_theta), 'linear', 'yarn' or 'llama3'"
            )
        if kind != "default" and not ENCODINGS[self.encoding].scalable:
            raise ValueError(f"rope_parameters has rope_type {kind!r}, but encoding {self.encoding} has no scaled frequencies")
        if self.attention_scale not in (None, "log_n"):
            raise ValueError(f"attention_scale is {self.attention_scale!r}: use 'log_n' or None")
        if not isinstance(self.layers, str | None):
            raise ValueError(f"layers is {self.layers!r}: use None, or a pattern such as 'tape@full, rope@1024*3'")
        for name in self.pattern.encodings:
            if name not in (*ENCODINGS, NO_ENCODING):
                raise ValueError(f"layers is {self.layers!r}, but there is only code for {', '.join(ENCODINGS)}")
        if self.nope_every is not None and not 2 <= self.nope_every <= self.num_hidden_layers:
            raise ValueError(f"nope_every is {self.nope_every}: use None, or a number from 2 to num_hidden_layers")
        if self.attention_bias not in ("none", "qkv", "qkvo"):
            raise ValueError(f"attention_bias is {self.attention_bias!r}: use 'none', 'qkv' or 'qkvo'")

    @property
    def pattern(self) -> LayerPattern:
        """Pattern of the layers."""
        return pattern_of(self.encoding, self.layers, self.nope_every)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Encoding and window of each layer."""
        return self.pattern.over(self.num_hidden_layers)

    @property
    def rotary_base(self) -> float:
        """Base of the rotary frequencies."""
        return self.rope_parameters["rope_theta"]

    @property
    def scaling(self) -> Any:
        """Scaling of the rotary frequencies, with the names used in training. None if they are not scaled."""
        rope = self.rope_parameters
        if rope["rope_type"] == "default":
            return None
        defaults = {"beta_fast": 32, "beta_slow": 1, "truncate": True, "attention_factor": None}
        settings = {name: value for name, value in rope.items() if value is not None}
        length = rope.get("original_max_position_embeddings")
        return SimpleNamespace(kind=rope["rope_type"], original_length=length, **defaults | settings)
