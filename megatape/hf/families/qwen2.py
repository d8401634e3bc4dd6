"""Family of transformers' Qwen2, also used by Qwen 2.5: a Llama with biases for queries, keys and values, and windows."""

from typing import Any

from transformers import PreTrainedConfig, Qwen2ForCausalLM

from megatape.config import ModelConfig
from megatape.hf.families.llama_like import LlamaLike, layer_type_fields


class Qwen2(LlamaLike):
    """Family of Qwen2ForCausalLM."""

    model_class = Qwen2ForCausalLM
    undeclared = frozenset({"head_dim"})

    def own_fields(self, model: ModelConfig) -> dict[str, Any]:
        return layer_type_fields(model)

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        return {"attention_bias": "qkv"}
