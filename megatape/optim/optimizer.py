"""Builds the configured optimizer from the parameters, which declare their own weight decay and learning-rate scale."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from megatape.config import OptimizerConfig
from megatape.parallel.parameters import settings
from megatape.registry import OPTIMIZERS

Group = dict[str, Any]  # as torch's optimizers take them


def build_optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer named by `config.kind`."""
    optimizer: torch.optim.Optimizer = OPTIMIZERS[config.kind].load()(parameter_groups(named_parameters, config), config)
    return optimizer


def parameter_groups(named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> list[Group]:
    """One group for each pair of weight decay and learning-rate scale that the trained parameters declare.

    `scale` multiplies a group's scheduled learning rate. (The authors of TAPE decay everything but norms and parameters with
    "bias" in their names: TAPE's gains and FIRE's two scalars too, but not T5's tables.)"""
    members: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for _, parameter in named_parameters:
        if not parameter.requires_grad:
            continue
        declared = settings(parameter)
        members.setdefault((not declared.decay, declared.lr_scale), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": config.learning_rate,
            "weight_decay": 0.0 if undecayed else config.weight_decay,
            "scale": scale,
        }
        for (undecayed, scale), parameters in sorted(members.items(), key=lambda group: group[0])
    ]
