"""Base class of model families: maps our models to transformers' architectures (names, configuration, code)."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedConfig, PreTrainedModel

from megatape.config import ModelConfig
from megatape.encodings.rope import rotated_size, scaled_base
from megatape.hf.families.exported_model import ExportedModel
from megatape.hf.modeling.configuration_tape import OLDEST_TRANSFORMERS, TapeConfig

# Our parameter and module names -> names in transformers' Llama and its relatives. They rotate halves of queries and keys like
# our models, so weights need no permutation.
TOP = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "head.weight": "lm_head.weight"}
LAYER = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
# LlamaConfig field -> field in our model section.
FIELDS = {"vocab_size": "vocab_size", "hidden_size": "hidden_size"}
FIELDS |= {theirs: ours for ours, theirs in TapeConfig.attribute_map.items()}
# Requirements of all families, stated in model cards.
REQUIREMENTS = f"PyTorch and transformers {OLDEST_TRANSFORMERS} or later"
# Field in rope_parameters -> field in model.scaling.
_SAME = ("factor", "beta_fast", "beta_slow", "truncate", "attention_factor", "low_freq_factor", "high_freq_factor")
SCALING = {name: name for name in _SAME} | {"original_max_position_embeddings": "original_length"}


class Family(ABC):
    """Architecture of transformers.

    Attributes:
        remote_code: Whether exported folders contain model code. If so, transformers needs trust_remote_code to load them.
        model_class: Installed class of exported models.
        undeclared: Fields that the model class reads although its configuration class does not declare them.
    """

    remote_code: ClassVar[bool] = False
    model_class: ClassVar[type[PreTrainedModel]]
    undeclared: ClassVar[frozenset[str]] = frozenset()

    @property
    def config_class(self) -> type[PreTrainedConfig]:
        """Configuration class of `model_class`."""
        config_class = self.model_class.config_class
        assert config_class is not None
        return config_class

    @property
    def code_note(self) -> str:
        """Paragraph about the model code, for model cards."""
        return f"It is a plain {type(self).__name__}: it needs {REQUIREMENTS}, and no code of its own."

    def parameter_name(self, name: str) -> str:
        """Return the name of our parameter in an exported model."""
        if name in TOP:
            return TOP[name]
        _, layer, name_in_layer = name.split(".", 2)
        return f"model.layers.{layer}.{self.layer_name(name_in_layer)}"

    def layer_name(self, name: str) -> str:
        """Return the name of our layer's parameter within an exported layer."""
        module, _, kind = name.rpartition(".")
        return f"{LAYER[module]}.{kind}"

    @abstractmethod
    def config(self, exported: ExportedModel) -> PreTrainedConfig:
        """Return transformers' configuration of an exported model.

        Raises:
            UserError: The architecture does not support the model.
        """

    @abstractmethod
    def model_fields(self, config: PreTrainedConfig) -> dict[str, Any]:
        """Return the fields of our model section for a transformers configuration: the inverse of `config`.

        Raises:
            UserError: A setting is not supported.
        """

    def code(self, model: ModelConfig) -> dict[str, str]:
        """Return the Python files that an export carries: file name -> code.

        Raises:
            UserError: The model needs code that exports cannot carry.
        """
        return {}

    def write_code(self, model: ModelConfig, folder: Path) -> None:
        """Write the Python files of `code` into an exported folder."""
        for name, code in self.code(model).items():
            (folder / name).write_text(code, encoding="utf-8")


def llama_fields(exported: ExportedModel) -> dict[str, Any]:
    """Return the LlamaConfig fields, which the configurations of its relatives share."""
    model = exported.model
    fields = {theirs: getattr(model, ours) for theirs, ours in FIELDS.items()}
    fields["head_dim"] = model.head_dim
    fields["rope_parameters"] = _rope_parameters(model)
    fields["dtype"] = exported.dtype
    return fields | exported.special._asdict()


def _rope_parameters(model: ModelConfig) -> dict[str, Any]:
    """Return transformers' rope_parameters, with rotary base and scaling."""
    scaling = model.scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": model.rotary_base}
    if scaling.kind == "theta":
        base = scaled_base(rotated_size(model), model.rotary_base, scaling.factor)
        return {"rope_type": "default", "rope_theta": base}

    parameters = {"rope_type": scaling.kind, "rope_theta": model.rotary_base}
    for theirs, ours in SCALING.items():
        value = getattr(scaling, ours, None)
        if value is not None:
            parameters[theirs] = value
    return parameters
