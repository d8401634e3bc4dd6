"""What a family says about itself: which models it holds, and their names, configuration and code in transformers' terms."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from megatape.config import Config, ModelConfig
from megatape.hf.tokenizer import SpecialTokens
from megatape.model.encodings.rotary import scaled_base

# What transformers' Llama and its many relatives call our parameters. Queries and keys rotate halves in both: no permutation.
TOP = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "head.weight": "lm_head.weight"}
LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}


class Family:
    """One architecture.

    tag: of its model cards. code_note: their paragraph on the code that runs the model. remote_code: whether transformers finds that
    code in the exported folder only, so that loading it without MegaTAPE takes trust_remote_code."""

    tag: ClassVar[str]
    code_note: ClassVar[str]
    remote_code: ClassVar[bool] = False

    @property
    def model_class(self) -> type[PreTrainedModel]:
        """The installed class that runs an exported folder; `megatape generate` runs no code of the folder."""
        raise NotImplementedError

    def represents(self, model: ModelConfig) -> bool:
        """Whether this architecture is that model."""
        raise NotImplementedError

    def parameter_name(self, name: str) -> str:
        """Name of one of our parameters in an exported model."""
        if name in TOP:
            return TOP[name]
        _, layer, rest = name.split(".", 2)
        return f"model.layers.{layer}.{self.layer_name(rest)}"

    def layer_name(self, name: str) -> str:
        """The same below the layer."""
        return LAYER[name]

    def config(self, config: Config, special: SpecialTokens) -> PreTrainedConfig:
        """Configuration of the exported model. Raises ValueError for a shape that the architecture refuses."""
        raise NotImplementedError

    def write_code(self, model: ModelConfig, folder: Path) -> None:
        """Copy the code that the model needs into the exported folder."""


def compute_dtype(config: Config) -> torch.dtype:
    """The run's compute precision, in which exported weights are stored."""
    dtype: torch.dtype = getattr(torch, config.training.precision)
    return dtype


def llama_fields(config: Config, special: SpecialTokens) -> dict[str, Any]:
    """The fields of transformers' LlamaConfig, which its relatives have under the same names."""
    model = config.model
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.mlp_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_positions,
        "rope_parameters": _rope_parameters(model),
        "rms_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tie_embeddings,
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
        "pad_token_id": special.pad,
        "dtype": compute_dtype(config),
    }


def _rope_parameters(model: ModelConfig) -> dict[str, Any]:
    scaling = model.scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": model.rotary_base}
    if scaling.kind == "theta":
        return {"rope_type": "default", "rope_theta": scaled_base(model.head_dim, model.rotary_base, scaling.factor)}
    parameters: dict[str, Any] = {"rope_type": scaling.kind, "rope_theta": model.rotary_base, "factor": scaling.factor}
    if scaling.kind == "yarn":
        parameters["original_max_position_embeddings"] = scaling.original_length
    return parameters
