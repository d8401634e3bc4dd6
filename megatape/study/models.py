"""Models to measure: the paper's shape, and weights that stand in for trained ones."""

import torch

from megatape.config import ModelConfig
from megatape.model.build import build_model
from megatape.model.init import initial_weight
from megatape.model.transformer import Transformer

PAPER_SHAPE = {"hidden_size": 768, "num_heads": 12, "mlp_size": 3072, "vocab_size": 32000, "position_size": 48}

# Position weights are zero only before training. Gains: the size they reach in 50 steps (docs/benchmarks.md); W_up: as W_down.
GAIN_STD = 0.06
UP_STD = 0.02


def unsettled_model(config: ModelConfig, seed: int, generator: torch.Generator) -> Transformer:
    """A model with initial weights, except that the zeros of gains and W_up are drawn, so that position updates take effect."""
    model = build_model(config)
    for name, parameter in model.named_parameters():
        parameter.data = initial_weight(name, parameter, config.init_std, seed)
        for ending, std in (("position.gain", GAIN_STD), ("position.up", UP_STD)):
            if name.endswith(ending):
                parameter.data.normal_(0.0, std, generator=generator)
    return model
