"""Exported models with random weights, and a Llama with the same shape."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from megatape.config import ModelConfig
from megatape.errors import UserError, flag
from megatape.hf.families.family import FIELDS
from megatape.hf.modeling.configuration_tape import TapeConfig
from megatape.hf.modeling.modeling_tape import TapeForCausalLM
from megatape.lab.encodings import BASELINE, with_encoding

# Name under which `build` returns the Llama.
LLAMA = "Llama"


def build(
    config: ModelConfig,
    encodings: list[str],
    length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, PreTrainedModel]:
    """Return a Llama and a model for each encoding, by name, with random weights.

    Args:
        config: Shape of the models. The models have no biases, no query norm and no scaling.
        encodings: Encoding names.
        length: Longest prompt.
        device: Device to run on.
        dtype: Weight precision.

    Raises:
        UserError: An encoding does not support the shape, or is the Llama's.
    """
    if BASELINE in encodings:
        raise UserError(f"{flag('encodings')}: {BASELINE} is exported as the {LLAMA} itself, which is always measured")
    fields = {theirs: getattr(config, ours) for theirs, ours in FIELDS.items()}
    fields["head_dim"] = config.head_dim
    # Decoding continues after the prompt, and RandPE draws as many positions as the configuration allows.
    max_positions = max(config.max_positions, 2 * length)
    fields["max_position_embeddings"] = max_positions
    models: dict[str, PreTrainedModel] = {}
    with torch.device(device):
        models[LLAMA] = LlamaForCausalLM(LlamaConfig(**fields))
        for name in encodings:
            encoding_fields = {
                "encoding": name,
                "position_size": with_encoding(config, name).position_size,
                "position_length": max_positions,
            }
            models[name] = TapeForCausalLM(TapeConfig(**fields, **encoding_fields))
    for model in models.values():
        module: nn.Module = model.eval()
        module.to(dtype)
    return models
