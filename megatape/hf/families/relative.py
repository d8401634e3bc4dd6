"""Base class of transformers' Llama and its relatives: converts their configurations to our model section and back."""

import math
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from megatape.config import ModelConfig
from megatape.config.scaling import SCALINGS
from megatape.errors import UserError
from megatape.hf.families.exported_model import ExportedModel
from megatape.hf.families.family import FIELDS, SCALING, Family, llama_fields

# Settings from which yarn's attention factor is derived if it is not given.
DERIVED_SETTINGS = {"mscale", "mscale_all_dim"}
# Rotary settings that transformers reads itself or ignores.
OTHER_SETTINGS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
ROPE_TYPES = ("default", "linear", "yarn", "llama3")


class Relative(Family):
    """A decoder-only transformer with rotary positions, RMSNorm and SwiGLU.

    Attributes:
        fixed: Fields of the configuration -> the only value that our models support.
    """

    fixed: ClassVar[dict[str, Any]] = {"hidden_act": "silu", "attention_dropout": 0.0}

    def window(self, config: PreTrainedConfig) -> int | None:
        """Return the sliding window if any layer has one. Mistral's configurations name no layers, since all have it."""
        layer_types = getattr(config, "layer_types", ["sliding_attention"])
        if "sliding_attention" not in layer_types:
            return None
        window: int | None = getattr(config, "sliding_window", None)
        return window

    def config(self, exported: ExportedModel) -> PreTrainedConfig:
        shared = llama_fields(exported)
        own = self.own_fields(exported.model)
        return self.config_class(**shared | own, architectures=[self.model_class.__name__])

    def own_fields(self, model: ModelConfig) -> dict[str, Any]:
        """Return the fields that not all relatives of Llama share. By default the bias, which most have."""
        return {"attention_bias": model.attention_bias == "qkvo"}

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        """Return the fields of our model section that follow from `own_fields`."""
        if config.attention_bias:
            return {"attention_bias": "qkvo"}
        return {"attention_bias": "none"}

    def model_fields(self, config: PreTrainedConfig) -> dict[str, Any]:
        for name, value in self.fixed.items():
            found = getattr(config, name)
            is_unset = found is None and not value
            if found != value and not is_unset:
                raise UserError(f"{name} is {found!r}; only {value!r} is supported")
        fields = {ours: getattr(config, theirs) for theirs, ours in FIELDS.items()}
        fields["encoding"] = "rope"
        fields["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return fields | rotary_fields(config) | self.features(config)


def rotary_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields rotary_base and scaling of our model section.

    Raises:
        UserError: Our rotary frequencies do not support a setting.
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
    """Raise UserError if our rotary frequencies do not support a setting."""
    if any(isinstance(value, dict) for value in rope.values()):
        raise UserError(f"rope_parameters differ between layers ({', '.join(rope)}): not supported")
    kind = rope.get("rope_type")
    if kind not in ROPE_TYPES:
        raise UserError(f"rope_type is {kind!r}: only 'default', 'linear', 'yarn' and 'llama3' are supported")
    unknown = sorted(rope.keys() - OTHER_SETTINGS - DERIVED_SETTINGS - SCALING.keys())
    if unknown:
        raise UserError(f"{unknown[0]} of its rope_parameters is not supported")
    rotary_share = rope.get("partial_rotary_factor", 1)
    if rotary_share != 1:
        raise UserError(f"partial_rotary_factor is {rotary_share}: heads that rotate in part are not supported")


def _mscale(factor: float, scale: float) -> float:
    """Return yarn's attention factor for one scale, as transformers and DeepSeek-V2 compute it."""
    if factor <= 1:
        return 1.0
    return 0.1 * scale * math.log(factor) + 1
