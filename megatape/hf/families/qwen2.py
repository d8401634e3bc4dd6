"""Family of transformers' Qwen2, which Qwen 2.5 uses as well: a Llama whose queries, keys and values have a bias."""

from typing import Any

from transformers import PreTrainedConfig, Qwen2ForCausalLM

from megatape.config import ModelConfig
from megatape.hf.families.relative import Relative


class Qwen2(Relative):
    """The family of Qwen2ForCausalLM."""

    model_class = Qwen2ForCausalLM
    undeclared = frozenset({"head_dim"})

    def own_fields(self, model: ModelConfig) -> dict[str, Any]:
        return {}

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        return {"attention_bias": "qkv"}
