"""transformers' Qwen3: a Llama whose query and key heads are normalized."""

from typing import Any

from transformers import PreTrainedConfig, Qwen3ForCausalLM

from megatape.config import ModelConfig
from megatape.hf.families.qwen2 import layer_window
from megatape.hf.families.relative import Relative


class Qwen3(Relative):
    """See above."""

    tag = "qwen3"
    code_note = "It is a plain Qwen3: it needs PyTorch and transformers > 5.3, and no code of its own."
    model_class = Qwen3ForCausalLM

    def own_fields(self, model: ModelConfig) -> dict[str, Any]:
        return {"attention_bias": model.attention_bias == "qkvo"}

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        return {"attention_bias": "qkvo" if config.attention_bias else "none", "qk_norm": True}

    def window(self, config: PreTrainedConfig) -> int | None:
        return layer_window(config)
