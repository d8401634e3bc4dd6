"""transformers' Llama: rotary positions, scaled or not."""

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel

from megatape.config import Config, ModelConfig
from megatape.hf.families.family import Family, llama_fields
from megatape.hf.tokenizer import SpecialTokens


class Llama(Family):
    """See above."""

    tag = "llama"
    code_note = "It is a plain Llama: it needs PyTorch and transformers > 5.3, and no code of its own."

    @property
    def model_class(self) -> type[PreTrainedModel]:
        return LlamaForCausalLM

    def represents(self, model: ModelConfig) -> bool:
        return model.encoding == "rope"

    def config(self, config: Config, special: SpecialTokens) -> PreTrainedConfig:
        model = config.model
        if model.hidden_size % model.num_heads:
            raise ValueError(
                "a rope model is exported as a Llama, and transformers' Llama needs a hidden_size that is a multiple of num_heads; "
                f"this one has {model.hidden_size} and {model.num_heads}: train with hidden_size = n x num_heads (head_dim is free)"
            )
        return LlamaConfig(**llama_fields(config, special), architectures=["LlamaForCausalLM"])
