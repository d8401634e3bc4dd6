"""Family of transformers' Qwen3: a Llama with normalized queries and keys."""

from typing import Any

from transformers import PreTrainedConfig, Qwen3ForCausalLM

from megatape.hf.families.relative import Relative


class Qwen3(Relative):
    """Family of Qwen3ForCausalLM."""

    model_class = Qwen3ForCausalLM

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        return super().features(config) | {"qk_norm": True}
