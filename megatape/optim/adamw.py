"""AdamW's parameter groups and the learning rate over the steps."""

from collections.abc import Iterable

import torch
from torch import nn

from megatape.config import ModelConfig, OptimizerConfig
from megatape.model.encodings import encoding_of


def adamw(
    named_parameters: Iterable[tuple[str, nn.Parameter]], model: ModelConfig, config: OptimizerConfig
) -> torch.optim.AdamW:
    """AdamW with three groups: decayed matrices; vectors, bias tables and dead parameters, not decayed; attention gains.

    A gain learns L times as fast as the rest (R times for tape_vector): the authors store it as a matrix whose entries of a row act
    as their sum, and under Adam each entry moves by the learning rate. The last layer's position update is never read and gets no
    gradient, so decay would be all that ever happened to it. (The authors decay everything but norms and what has "bias" in its
    name: gains and FIRE's two scalars too, but not T5's tables.) `scale` multiplies the scheduled learning rate of a group."""
    decayed, kept, gains = [], [], []
    last = f"blocks.{model.num_layers - 1}.position."
    for name, parameter in named_parameters:
        if name.endswith("position.gain"):
            gains.append(parameter)
        elif len(getattr(parameter, "ds_shape", parameter.shape)) < 2 or name.startswith(last) or name.endswith("bias.table"):
            kept.append(parameter)
        else:
            decayed.append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay, "scale": 1.0},
        {"params": kept, "weight_decay": 0.0, "scale": 1.0},
        {"params": gains, "weight_decay": 0.0, "scale": float(encoding_of(model).gain_copies)},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,  # one pass without temporaries, which otherwise are several times the masters
    )
