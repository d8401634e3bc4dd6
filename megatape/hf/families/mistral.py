"""Family of transformers' Mistral: a Llama that may attend to the last tokens only. Our samples are not longer than that."""

from typing import Any

from transformers import MistralForCausalLM, PreTrainedConfig

from megatape.config import ModelConfig
from megatape.hf.families.relative import Relative


class Mistral(Relative):
    """The family of MistralForCausalLM."""

    model_class = MistralForCausalLM

    def own_fields(self, model: ModelConfig) -> dict[str, Any]:
        return {"sliding_window": model.sliding_window}

    def features(self, config: PreTrainedConfig) -> dict[str, Any]:
        return {"sliding_window": config.sliding_window}
