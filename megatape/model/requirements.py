"""Requirements of a run's attention layers, by which backends are chosen."""

from dataclasses import replace

import torch

from megatape.attention.backend import AttentionRequirements
from megatape.config import Config
from megatape.encodings import encoding_of


def attention_requirements(config: Config, device_type: str) -> list[AttentionRequirements]:
    """Return the requirements of a run's layers on this type of device, the most demanding ones first.

    The last layer that has positions does not move the state, because nothing reads it. Layers without positions move no state
    and have no bias.
    """
    encoding = encoding_of(config.model)
    most_layers = AttentionRequirements(
        device_type,
        encoding.moves_state,
        encoding.score_bias,
        encoding.qk_width,
        getattr(torch, config.training.precision),
        masked=config.data.mask_documents,
        ring=config.parallel.cp > 1,
    )
    requirements = [most_layers, replace(most_layers, moves_state=False)]
    if config.model.nope_every:
        requirements.append(replace(most_layers, moves_state=False, bias="none", head_dim=config.model.head_dim))
    return list(dict.fromkeys(requirements))
