"""Base class for Llama and its relatives: converts their configurations to our model section and back."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from megatape.config import ModelConfig
from megatape.config.layers.layer_pattern import LayerKind, shortest_pattern
from megatape.config.sections.scaling import SCALINGS
from megatape.errors import UserError
from megatape.hf.families.exported_model import ExportedModel
from megatape.hf.families.family import FIELDS, SCALING, Family, llama_fields
from megatape.hf.modeling.configuration_tape import ROPE_TYPES

# YaRN settings that determine the attention factor if it is not set.
DERIVED_SETTINGS = {"mscale", "mscale_all_dim"}
# Rotary settings that have no counterpart in model.scaling.
OTHER_SETTINGS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
# Kinds of attention in the layer_types of transformers' configurations.
FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"


class LlamaLike(Family):
    """A decoder-only transformer with rotary positions, RMSNorm and SwiGLU.

    Attributes:
        fixed: Field of the configuration -> only value that our models support.
    """

    fixed: ClassVar[dict[str, Any]] = {"hidden_act": "silu", "attention_dropout": 0.0}

    def config(self, exported: ExportedModel) -> PreTrainedConfig:
        fields = llama_fields(exported) | self.own_fields(exported.model)
        return self.config_class(**fields, architectures=[self.model_class.__name__])

    def own_fields(self, model: ModelConfig) -> dict[str, Any]:
        """Return configuration fields that Llama's relatives do not share. Most have attention_bias."""
        return {"attention_bias": model.attention_bias == "qkvo"}

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        """Return the fields of our model section that correspond to `own_fields`."""
        if config.attention_bias:
            return {"attention_bias": "qkvo"}
        return {"attention_bias": "none"}

    def model_fields(self, config: PreTrainedConfig) -> dict[str, Any]:
        for name, value in self.fixed.items():
            actual = getattr(config, name)
            is_unset = actual is None and not value
            if actual != value and not is_unset:
                raise UserError(f"{name} is {actual!r}; only {value!r} is supported")
        fields = {ours: getattr(config, theirs) for theirs, ours in FIELDS.items()}
        fields["encoding"] = "rope"
        fields["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return fields | rotary_fields(config) | self.features(config) | window_fields(config)


def window_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields `sliding_window` or `layers` of our model section.

    Raises:
        UserError: A layer has another kind of attention.
    """
    windows = _layer_windows(config)
    if len(set(windows)) == 1:
        return {"sliding_window": windows[0]}
    kinds = []
    for window in windows:
        if window is not None and window > config.max_position_embeddings:
            # A window beyond the longest text hides no token.
            window = None
        kinds.append(LayerKind("rope", window))
    return {"layers": str(shortest_pattern(kinds))}


def _layer_windows(config: PreTrainedConfig) -> list[int | None]:
    """Return the attention window of each layer, None for full attention. Mistral's configuration has no layer_types."""
    window: int | None = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return [window] * config.num_hidden_layers
    windows = []
    for layer_type in layer_types:
        if layer_type not in (FULL_ATTENTION, SLIDING_ATTENTION):
            raise UserError(f"layer_types has {layer_type!r}; only {FULL_ATTENTION!r} and {SLIDING_ATTENTION!r} are supported")
        windows.append(window if layer_type == SLIDING_ATTENTION else None)
    return windows


def layer_type_fields(model: ModelConfig) -> dict[str, Any]:
    """Return the fields of Qwen's configuration for attention windows. At most one window is supported."""
    windows = [kind.window for kind in model.layer_kinds]
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return {}
    (window,) = sizes
    return {
        "use_sliding_window": True,
        "sliding_window": window,
        "max_window_layers": next(layer for layer, size in enumerate(windows) if size is not None),
        "layer_types": [FULL_ATTENTION if size is None else SLIDING_ATTENTION for size in windows],
    }


def rotary_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields `rotary_base` and `scaling` of our model section.

    Raises:
        UserError: A rotary setting is not supported.
    """
    rope: dict[str, Any] = config.rope_parameters
    _check_supported(rope)
    kind: str = rope["rope_type"]
    fields = {"rotary_base": rope["rope_theta"], "scaling": None}
    if kind == "default" or (kind == "linear" and rope["factor"] == 1):
        return fields

    supported = SCALINGS[kind].model_fields
    scaling = {}
    for theirs, ours in SCALING.items():
        if ours in supported and rope.get(theirs) is not None:
            scaling[ours] = rope[theirs]
    if kind == "yarn":
        scaling.setdefault("factor", config.max_position_embeddings / rope["original_max_position_embeddings"])
        numerator = rope.get("mscale")
        denominator = rope.get("mscale_all_dim")
        if "attention_factor" not in scaling and numerator and denominator:
            factor = scaling["factor"]
            scaling["attention_factor"] = _mscale(factor, numerator) / _mscale(factor, denominator)
    fields["scaling"] = {"kind": kind} | scaling
    return fields


def _check_supported(rope: dict[str, Any]) -> None:
    """Raise UserError if a rotary setting is not supported."""
    if any(isinstance(value, dict) for value in rope.values()):
        raise UserError(f"rope_parameters differ between layers ({', '.join(rope)}): not supported")
    kind = rope.get("rope_type")
    if kind not in ROPE_TYPES:
        *others, last = (repr(name) for name in ROPE_TYPES)
        raise UserError(f"rope_type is {kind!r}: only {', '.join(others)} and {last} are supported")
    unknown = sorted(rope.keys() - OTHER_SETTINGS - DERIVED_SETTINGS - SCALING.keys())
    if unknown:
        raise UserError(f"{unknown[0]} of its rope_parameters is not supported")
    check_rotary_share(rope)


def check_rotary_share(settings: Mapping[str, Any]) -> None:
    """Check that all channels of a head rotate.

    Args:
        settings: Configuration fields, or their rope_parameters, which may have a partial_rotary_factor.

    Raises:
        UserError: Heads rotate in part.
    """
    rotary_share = settings.get("partial_rotary_factor")
    if rotary_share not in (None, 1):
        raise UserError(f"partial_rotary_factor is {rotary_share}: heads that rotate in part are not supported")


def _mscale(factor: float, scale: float) -> float:
    """Return YaRN's attention factor for one scale, computed as in transformers and DeepSeek-V2."""
    if factor <= 1:
        return 1.0
    return 0.1 * scale * math.log(factor) + 1
