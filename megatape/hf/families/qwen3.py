"""Family of transformers' Qwen3: a Llama with normalized queries and keys, and windows in some layers."""

from typing import Any

from transformers import PreTrainedConfig, Qwen3ForCausalLM

from megatape.config import ModelConfig
from megatape.hf.families.llama_like import LlamaLike, layer_type_fields


class Qwen3(LlamaLike):
    """Family of Qwen3ForCausalLM."""

    model_class = Qwen3ForCausalLM

    def own_fields(self, model: ModelConfig) -> dict[str, Any]:
        return super().own_fields(model) | layer_type_fields(model)

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        return super().features(config) | {"qk_norm": True}
