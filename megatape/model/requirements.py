"""Requirements of attention layers, used for selecting their backends."""

from dataclasses import replace

import torch

from megatape.attention.backend import AttentionRequirements
from megatape.config import Config, ModelConfig
from megatape.encodings import layer_encodings


def attention_requirements(config: Config, device_type: str) -> list[AttentionRequirements]:
    """Return the requirements of a run's layers, the most demanding ones first. `device_type` is a name such as "cuda"."""
    return layer_requirements(
        config.model,
        device_type,
        config.training.precision,
        length=config.data.sequence_length,
        masked=config.data.mask_documents,
        ring=config.parallel.cp > 1,
        deterministic=config.training.deterministic,
    )


def layer_requirements(
    model: ModelConfig, device_type: str, precision: str, length: int, masked: bool, ring: bool, deterministic: bool
) -> list[AttentionRequirements]:
    """Return the requirements of a model's layers, those with the model's encoding first.

    The last layer with the model's encoding does not move the state, because no later layer reads it.

    Args:
        model: Model configuration.
        device_type: Device type, such as "cuda".
        precision: Precision of queries, keys and values, such as "bfloat16".
        length: Number of tokens in a sample.
        masked: Whether samples are packed documents that do not see each other.
        ring: Whether keys and values pass around context-parallel ranks.
        deterministic: Whether the same inputs must give the same gradients, bit for bit.
    """
    of_main_encoding = []
    of_others = []
    for kind, encoding in zip(model.layer_kinds, layer_encodings(model), strict=True):
        of_layer = AttentionRequirements(
            device_type=device_type,
            averages_state=encoding.moves_state,
            bias=encoding.score_bias,
            head_dim=encoding.qk_width,
            dtype=getattr(torch, precision),
            masked=masked,
            ring=ring,
            windowed=kind.window is not None and kind.window < length,
            grouped=model.num_heads != model.num_kv_heads,
            deterministic=deterministic,
        )
        moving_and_last = [of_layer, replace(of_layer, averages_state=False)]
        if kind.encoding == model.encoding:
            of_main_encoding += moving_and_last
        else:
            of_others += moving_and_last
    return list(dict.fromkeys(of_main_encoding + of_others))
