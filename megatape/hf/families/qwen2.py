"""transformers' Qwen2, also of Qwen 2.5: a Llama whose queries, keys and values have a bias."""

from typing import Any

from transformers import PreTrainedConfig, Qwen2ForCausalLM

from megatape.hf.families.relative import Relative


class Qwen2(Relative):
    """See above."""

    tag = "qwen2"
    code_note = "It is a plain Qwen2: it needs PyTorch and transformers > 5.3, and no code of its own."
    model_class = Qwen2ForCausalLM
    undeclared = frozenset({"head_dim"})

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        return {"attention_bias": "qkv"}

    def window(self, config: PreTrainedConfig) -> int | None:
        return layer_window(config)


def layer_window(config: PreTrainedConfig) -> int | None:
    """The sliding window, where any layer has it."""
    window: int | None = config.sliding_window
    return window if "sliding_attention" in config.layer_types else None
