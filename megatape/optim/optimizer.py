"""Builds the configured optimizer from the parameters, which declare their own weight decay and learning-rate scale."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from megatape.config import OptimizerConfig
from megatape.errors import UserError
from megatape.nn.parameters import spec_of
from megatape.registry import OPTIMIZERS

# A parameter group of torch's optimizers.
Group = dict[str, Any]


class GroupKey(NamedTuple):
    """Declarations that the weights of a parameter group share. Groups are in the order of their keys.

    Attributes:
        is_undecayed: Whether weight decay does not apply.
        scale: Factor of the scheduled learning rate.
        role: Role of the weights, empty if groups are not divided by role.
    """

    is_undecayed: bool
    scale: float
    role: str


def build_optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the configured optimizer.

    Args:
        named_parameters: All parameters of the model, by name.
        config: Configuration of the optimizer.

    Raises:
        UserError: The optimizer updates whole matrices, and none is trained.
    """
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
    updates_matrices = OPTIMIZERS[config.kind].matrix_state is not None
    return updates_matrices and config.is_whole(spec_of(parameter).role)


def parameter_groups(named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> list[Group]:
    """Return a group for each pair of weight decay and learning-rate scale that the trained parameters declare.

    An optimizer of whole matrices has separate groups for each role. `scale` multiplies a group's scheduled learning rate, and
    `whole` says whether its weights are updated as whole matrices.

    The authors of TAPE decay everything but norms and parameters with "bias" in their names: TAPE's gains and FIRE's two
    scalars too, but not T5's tables.

    Args:
        named_parameters: All parameters of the model, by name.
        config: Configuration of the optimizer.
    """
    by_role = OPTIMIZERS[config.kind].matrix_state is not None
    members: dict[GroupKey, dict[str, nn.Parameter]] = {}
    for name, parameter in named_parameters:
        if not parameter.requires_grad:
            continue
        declared = spec_of(parameter)
        role = ""
        if by_role:
            role = declared.role
        key = GroupKey(not declared.decay, declared.lr_scale, role)
        members.setdefault(key, {})[name] = parameter

    groups = []
    for key in sorted(members):
        parameters = members[key]
        weight_decay = config.weight_decay
        if key.is_undecayed:
            weight_decay = 0.0
        groups.append(
            {
                "params": list(parameters.values()),
                "names": list(parameters),
                "lr": config.learning_rate,
                "weight_decay": weight_decay,
                "scale": key.scale,
                "role": key.role or None,
                "whole": by_role and config.is_whole(key.role),
            }
        )
    return groups
