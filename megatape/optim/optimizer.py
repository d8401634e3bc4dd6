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
    entry = OPTIMIZERS[config.kind]
    groups = parameter_groups(named_parameters, config, by_role=entry.matrix_state is not None)
    optimizer: torch.optim.Optimizer = entry.load()(groups, config)
    return optimizer


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig, by_role: bool = False
) -> list[Group]:
    """One group for each pair of weight decay and learning-rate scale that the trained parameters declare.

    `scale` multiplies a group's scheduled learning rate. (The authors of TAPE decay everything but norms and parameters with
    "bias" in their names: TAPE's gains and FIRE's two scalars too, but not T5's tables.)

    Args:
        named_parameters: all parameters of the model, by name.
        config: learning rate and weight decay.
        by_role: whether weights of different roles are in different groups, whose `role` says which. It is None otherwise.
    """
    members: dict[tuple[bool, float, str], dict[str, nn.Parameter]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            declared = settings(parameter)
            key = not declared.decay, declared.lr_scale, declared.role if by_role else ""
            members.setdefault(key, {})[name] = parameter
    return [
        {
            "params": list(parameters.values()),
            "names": list(parameters),
            "lr": config.learning_rate,
            "weight_decay": 0.0 if undecayed else config.weight_decay,
            "scale": scale,
            "role": role or None,
        }
        for (undecayed, scale, role), parameters in sorted(members.items(), key=lambda group: group[0])
    ]
