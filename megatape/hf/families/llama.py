"""Family of transformers' Llama."""

from transformers import LlamaForCausalLM

from megatape.hf.families.relative import Relative


class Llama(Relative):
    """Family of LlamaForCausalLM."""

    model_class = LlamaForCausalLM
    fixed = Relative.fixed | {"mlp_bias": False, "pretraining_tp": 1}
