"""transformers' Llama and its relatives: what their configurations share with our model section, in both directions."""

import math
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from megatape.config import Config, ModelConfig
from megatape.config.scaling import SCALINGS
from megatape.errors import UserError
from megatape.hf.families.family import FIELDS, SCALING, Family, llama_fields
from megatape.hf.tokenizer import SpecialTokens

# What yarn's attention factor is made from where it is not given, and what transformers itself reads or ignores.
_DERIVED = {"mscale", "mscale_all_dim"}
_ROPE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


class Relative(Family):
    """A decoder-only transformer with rotary positions, RMSNorm and SwiGLU.

    fixed: fields of its configuration that our models have with one value only; they are refused with another.
    """

    fixed: ClassVar[dict[str, Any]] = {"hidden_act": "silu", "attention_dropout": 0.0}

    def window(self, config: PreTrainedConfig) -> int | None:
        """The sliding window, where any layer has it; Mistral's configurations name no layers, since all have it."""
        window: int | None = getattr(config, "sliding_window", None)
        return window if "sliding_attention" in getattr(config, "layer_types", ["sliding_attention"]) else None

    def config(self, config: Config, special: SpecialTokens) -> PreTrainedConfig:
        fields = llama_fields(config, special) | self.own_fields(config.model)
        return self.config_class(**fields, architectures=[self.model_class.__name__])

    def own_fields(self, model: ModelConfig) -> dict[str, Any]:
        """Fields of their configuration that Llama's relatives do not share; the biases by default, which most have."""
        return {"attention_bias": model.attention_bias == "qkvo"}

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        """The inverse: fields of our model section that follow from those."""
        return {"attention_bias": "qkvo" if config.attention_bias else "none"}

    def model_fields(self, config: PreTrainedConfig) -> dict[str, Any]:
        for name, value in self.fixed.items():
            found = getattr(config, name)
            if found != value and not (found is None and not value):
                raise UserError(f"{name} is {found!r}; only {value!r} is supported")
        shared = {ours: getattr(config, theirs) for theirs, ours in FIELDS.items()}
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return shared | {"encoding": "rope", "head_dim": head_dim} | rotary_fields(config) | self.features(config)


def rotary_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """rotary_base and scaling of a configuration. Raises UserError for what our frequencies cannot be."""
    rope: dict[str, Any] = config.rope_parameters
    kind = rope.get("rope_type")
    if any(isinstance(value, dict) for value in rope.values()):
        raise UserError(f"rope_parameters differ between layers ({', '.join(rope)}): not supported")
    if kind not in ("default", "linear", "yarn", "llama3"):
        raise UserError(f"rope_type is {kind!r}: only 'default', 'linear', 'yarn' and 'llama3' are supported")
    if unknown := sorted(rope.keys() - _ROPE - _DERIVED - SCALING.keys()):
        raise UserError(f"{unknown[0]} of its rope_parameters is not supported")
    if rope.get("partial_rotary_factor", 1) != 1:
        raise UserError(
            f"partial_rotary_factor is {rope['partial_rotary_factor']}: heads that rotate in part are not supported"
        )
    base = {"rotary_base": rope["rope_theta"], "scaling": None}
    if kind == "default" or (kind == "linear" and rope["factor"] == 1):
        return base
    takes = SCALINGS[kind].model_fields
    scaling = {ours: rope[theirs] for theirs, ours in SCALING.items() if ours in takes and rope.get(theirs) is not None}
    if kind == "yarn":
        scaling.setdefault("factor", config.max_position_embeddings / rope["original_max_position_embeddings"])
        top = rope.get("mscale")
        bottom = rope.get("mscale_all_dim")
        if "attention_factor" not in scaling and top and bottom:
            scaling["attention_factor"] = _mscale(scaling["factor"], top) / _mscale(scaling["factor"], bottom)
    return base | {"scaling": {"kind": kind} | scaling}


def _mscale(factor: float, scale: float) -> float:
    """As in transformers, which has it from DeepSeek-V2."""
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0
