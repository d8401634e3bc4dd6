"""What a family says about itself: which models it holds, and their names, configuration and code in transformers' terms."""

from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedConfig, PreTrainedModel

from megatape.config import Config, ModelConfig
from megatape.encodings.rope import rotated_size, scaled_base
from megatape.hf.dtypes import stored_dtype
from megatape.hf.modeling.configuration_tape import OLDEST_TRANSFORMERS, TapeConfig
from megatape.hf.tokenizer import SpecialTokens

# What transformers' Llama and its many relatives call our parameters, and the modules of our layers. Queries and keys rotate
# halves in both: no permutation.
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
# What its configuration calls the fields of our model section.
FIELDS = {"vocab_size": "vocab_size", "hidden_size": "hidden_size"}
FIELDS |= {theirs: ours for ours, theirs in TapeConfig.attribute_map.items()}
# Requirements of every family, stated in model cards.
REQUIREMENTS = f"PyTorch and transformers {OLDEST_TRANSFORMERS} or later"
# What rope_parameters call the fields of model.scaling: all but one the same.
_SAME = ("factor", "beta_fast", "beta_slow", "truncate", "attention_factor", "low_freq_factor", "high_freq_factor")
SCALING = {name: name for name in _SAME} | {"original_max_position_embeddings": "original_length"}


class Family:
    """One architecture.

    remote_code: whether transformers finds the code that runs the model in the exported folder only, so that loading it without
    MegaTAPE takes trust_remote_code. model_class: the installed class that runs a folder of it. undeclared: fields that this
    class reads, though its configuration does not declare them.
    """

    remote_code: ClassVar[bool] = False
    model_class: ClassVar[type[PreTrainedModel]]
    undeclared: ClassVar[frozenset[str]] = frozenset()

    @property
    def config_class(self) -> type[PreTrainedConfig]:
        """The class of its configurations."""
        found = self.model_class.config_class
        assert found is not None
        return found

    @property
    def code_note(self) -> str:
        """The paragraph of model cards on the code that runs the model."""
        return f"It is a plain {type(self).__name__}: it needs {REQUIREMENTS}, and no code of its own."

    def parameter_name(self, name: str) -> str:
        """Name of one of our parameters in an exported model."""
        if name in TOP:
            return TOP[name]
        _, layer, rest = name.split(".", 2)
        return f"model.layers.{layer}.{self.layer_name(rest)}"

    def layer_name(self, name: str) -> str:
        """Name of a layer's parameter in the layer of transformers."""
        module, _, kind = name.rpartition(".")
        return f"{LAYER[module]}.{kind}"

    def config(self, config: Config, special: SpecialTokens) -> PreTrainedConfig:
        """Configuration of the exported model."""
        raise NotImplementedError

    def model_fields(self, config: PreTrainedConfig) -> dict[str, Any]:
        """The inverse: our model section of a model with this configuration. Raises UserError naming what is not supported."""
        raise NotImplementedError

    def window(self, config: PreTrainedConfig) -> int | None:
        """The last tokens that the model attends to, None for all."""
        return None

    def code(self, model: ModelConfig) -> dict[str, str]:
        """Return the Python files that an export of this model carries: name -> code.

        Raises:
            UserError: The model needs code that exports cannot carry.
        """
        return {}

    def write_code(self, model: ModelConfig, folder: Path) -> None:
        """Write the Python files that the model needs into the exported folder."""


def llama_fields(config: Config, special: SpecialTokens) -> dict[str, Any]:
    """The fields of transformers' LlamaConfig, which its relatives have under the same names."""
    model = config.model
    shared = {theirs: getattr(model, ours) for theirs, ours in FIELDS.items()}
    own = {"head_dim": model.head_dim, "rope_parameters": _rope_parameters(model), "dtype": stored_dtype(config)}
    return shared | own | special._asdict()


def _rope_parameters(model: ModelConfig) -> dict[str, Any]:
    scaling = model.scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": model.rotary_base}
    if scaling.kind == "theta":
        return {"rope_type": "default", "rope_theta": scaled_base(rotated_size(model), model.rotary_base, scaling.factor)}
    parameters = {theirs: getattr(scaling, ours, None) for theirs, ours in SCALING.items()}
    return {"rope_type": scaling.kind, "rope_theta": model.rotary_base} | {
        name: value for name, value in parameters.items() if value is not None
    }
