"""vLLM plugin that serves language models exported by MegaTAPE.

__init__.py        registers the model
model.py           the model, made of vLLM's parallel layers
exported_code.py   the position encoding, from the exported folder
"""


def register() -> None:
    """Register the architecture of exported models. vLLM calls this in each of its processes.

    The class is registered by name, so that vLLM can fork before it is imported.
    """
    from vllm import ModelRegistry

    ModelRegistry.register_model("TapeForCausalLM", "tape_vllm.model:TapeForCausalLM")
