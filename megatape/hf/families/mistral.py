"""Family of transformers' Mistral: a Llama with an optional attention window, the same in all layers."""

from typing import Any

from transformers import MistralForCausalLM, PreTrainedConfig

from megatape.config import ModelConfig
from megatape.hf.families.llama_like import LlamaLike


class Mistral(LlamaLike):
    """Family of MistralForCausalLM."""

    model_class = MistralForCausalLM

    def own_fields(self, model: ModelConfig) -> dict[str, Any]:
        (window,) = model.pattern.windows
        return {"sliding_window": window}

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        return {}
