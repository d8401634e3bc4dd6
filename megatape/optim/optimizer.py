"""Builds the configured optimizer from the parameters, which declare their own weight decay and learning-rate scale."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from megatape.config import OptimizerConfig
from megatape.errors import UserError
from megatape.nn.parameters import settings
from megatape.registry import OPTIMIZERS

Group = dict[str, Any]  # as torch's optimizers take them


def build_optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer named by `config.kind`. Raises UserError if it is one of whole matrices, and none of them is trained."""
    entry = OPTIMIZERS[config.kind]
    groups = parameter_groups(named_parameters, config)
    if entry.matrix_state and not any(group["whole"] for group in groups):
        raise UserError(
            f"optimizer.kind {config.kind} has no matrix to update: no trained weight has a role that it updates whole; choose "
            "another kind, or train matrices as well (training.trainable, optimizer.orthogonalized of muon)"
        )
    return entry.load()(groups, config)


def is_whole(parameter: nn.Parameter, config: OptimizerConfig) -> bool:
    """Whether the configured optimizer updates a weight as a whole matrix."""
    return OPTIMIZERS[config.kind].matrix_state is not None and config.is_whole(settings(parameter).role)


def parameter_groups(named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> list[Group]:
    """One group for each pair of weight decay and learning-rate scale that the trained parameters declare.

    An optimizer of whole matrices has groups of its own for each role. `scale` multiplies a group's scheduled learning rate,
    and `whole` says whether its weights are updated as whole matrices.

    (The authors of TAPE decay everything but norms and parameters with
    "bias" in their names: TAPE's gains and FIRE's two scalars too, but not T5's tables.)

    Args:
        named_parameters: all parameters of the model, by name.
        config: of the optimizer.
    """
    by_role = OPTIMIZERS[config.kind].matrix_state is not None
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
            "whole": by_role and config.is_whole(role),
        }
        for (undecayed, scale, role), parameters in sorted(members.items(), key=lambda group: group[0])
    ]
