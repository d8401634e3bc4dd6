"""Requirements of attention layers, used for selecting their backends."""

from dataclasses import replace

import torch

from megatape.attention.backend import AttentionRequirements
from megatape.config import Config, ModelConfig
from megatape.encodings import encoding_of


def attention_requirements(config: Config, device_type: str) -> list[AttentionRequirements]:
    """Return the requirements of a run's layers, the most demanding ones first. `device_type` is a name such as "cuda"."""
    return layer_requirements(
        config.model,
        device_type,
        config.training.precision,
        masked=config.data.mask_documents,
        ring=config.parallel.cp > 1,
    )


def layer_requirements(
    model: ModelConfig, device_type: str, precision: str, masked: bool, ring: bool
) -> list[AttentionRequirements]:
    """Return the requirements of a model's layers, the most demanding ones first.

    The last layer with positions does not move the state, because no later layer reads it. Layers without positions neither
    move a state nor have a bias.

    Args:
        model: Model configuration.
        device_type: Device type, such as "cuda".
        precision: Precision of queries, keys and values, such as "bfloat16".
        masked: Whether samples are packed documents that do not see each other.
        ring: Whether keys and values pass around context-parallel ranks.
    """
    encoding = encoding_of(model)
    most_layers = AttentionRequirements(
        device_type,
        encoding.moves_state,
        encoding.score_bias,
        encoding.qk_width,
        getattr(torch, precision),
        masked=masked,
        ring=ring,
    )
    requirements = [most_layers, replace(most_layers, moves_state=False)]
    if model.nope_every:
        requirements.append(replace(most_layers, moves_state=False, bias="none", head_dim=model.head_dim))
    return list(dict.fromkeys(requirements))
