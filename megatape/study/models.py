"""Models to measure: the paper's shape, and weights that need no training."""

import torch

from megatape.config import ModelConfig
from megatape.model.init import initial_weight
from megatape.model.transformer import Transformer

PAPER_SHAPE = {"hidden_size": 768, "num_heads": 12, "mlp_size": 3072, "vocab_size": 32000, "position_size": 48}

# A trained model's position weights are not zero: gains of the size that 50 steps of training reach (docs/benchmarks.md), W_up as W_down.
GAIN_STD = 0.06
UP_STD = 0.02


def unsettled_model(config: ModelConfig, seed: int, generator: torch.Generator) -> Transformer:
    """Initial weights for the seed, but gains and W_up, which start at zero, drawn from the generator: the position state moves."""
    model = Transformer(config)
    for name, parameter in model.named_parameters():
        parameter.data = initial_weight(name, parameter, config.init_std, seed)
        for ending, std in (("position.gain", GAIN_STD), ("position.up", UP_STD)):
            if name.endswith(ending):
                parameter.data.normal_(0.0, std, generator=generator)
    return model
