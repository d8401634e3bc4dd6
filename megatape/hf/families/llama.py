"""Family of transformers' Llama."""

from transformers import LlamaForCausalLM

from megatape.hf.families.llama_like import LlamaLike


class Llama(LlamaLike):
    """Family of LlamaForCausalLM."""

    model_class = LlamaForCausalLM
    fixed = LlamaLike.fixed | {"mlp_bias": False, "pretraining_tp": 1}
