"""AdamW's parameter groups and the learning rate over the steps."""

from collections.abc import Iterable

import torch
from torch import nn

from megatape.config import OptimizerConfig
from megatape.parallel.parameters import settings


def adamw(named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with one group for each weight decay and learning-rate scale that the parameters declare.

    `scale` multiplies the scheduled learning rate of a group. (The authors decay everything but norms and what has "bias" in its
    name: TAPE's gains and FIRE's two scalars too, but not T5's tables.)"""
    members: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for _, parameter in named_parameters:
        declared = settings(parameter)
        members.setdefault((not declared.decay, declared.lr_scale), []).append(parameter)
    groups = [
        {"params": parameters, "weight_decay": 0.0 if undecayed else config.weight_decay, "scale": scale}
        for (undecayed, scale), parameters in sorted(members.items(), key=lambda group: group[0])
    ]
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,  # one pass without temporaries, which otherwise are several times the masters
    )
