"""Building the configured optimizer from parameters that declare their own weight decay and learning-rate scale."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from megatape.config import OptimizerConfig
from megatape.errors import UserError
from megatape.nn.parameters import spec_of
from megatape.registry import OPTIMIZERS

# Parameter group of a torch optimizer.
Group = dict[str, Any]


class GroupKey(NamedTuple):
    """Declarations shared by the weights in a parameter group.

    Attributes:
        decays: Whether weight decay applies to the weights.
        scale: Factor on the scheduled learning rate.
        role: Role of the weights, or None if the optimizer treats all roles alike.
    """

    decays: bool
    scale: float
    role: str | None


def build_optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the configured optimizer.

    Args:
        named_parameters: All parameters of the model, by name.
        config: Section `optimizer` of the configuration.

    Raises:
        UserError: The optimizer updates whole matrices, but none is trained.
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
    """Whether the optimizer updates a weight as a whole matrix."""
    updates_matrices = OPTIMIZERS[config.kind].matrix_state is not None
    return updates_matrices and config.is_whole(spec_of(parameter).role)


def parameter_groups(named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> list[Group]:
    """Group the trained parameters by GroupKey.

    In a group, `scale` multiplies the scheduled learning rate, and `whole` says whether its weights are updated as whole
    matrices.

    The TAPE authors decay everything except norms and parameters with "bias" in their names. So they decay TAPE's gains and
    FIRE's two scalars, but not T5's tables.

    Args:
        named_parameters: All parameters of the model, by name.
        config: Section `optimizer` of the configuration.

    Returns:
        Groups with weight decay, then those without, each by scale and role.
    """
    by_role = OPTIMIZERS[config.kind].matrix_state is not None
    members: dict[GroupKey, dict[str, nn.Parameter]] = {}
    for name, parameter in named_parameters:
        if not parameter.requires_grad:
            continue
        declared = spec_of(parameter)
        role = declared.role if by_role else None
        key = GroupKey(declared.decay, declared.lr_scale, role)
        members.setdefault(key, {})[name] = parameter

    groups = []
    for key in sorted(members, key=_order):
        parameters = members[key]
        is_whole_group = key.role is not None and config.is_whole(key.role)
        weight_decay = config.weight_decay if key.decays else 0.0
        groups.append(
            {
                "params": list(parameters.values()),
                "names": list(parameters),
                "lr": config.learning_rate,
                "weight_decay": weight_decay,
                "scale": key.scale,
                "role": key.role,
                "whole": is_whole_group,
            }
        )
    return groups


def _order(key: GroupKey) -> tuple[bool, float, str]:
    """Return a key that sorts groups, on all ranks alike: first the ones with weight decay, then by scale and role."""
    return not key.decays, key.scale, key.role or ""
