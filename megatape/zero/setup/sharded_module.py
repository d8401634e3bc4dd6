"""Builds a module for DeepSpeed, with sharded weights at ZeRO stage 3."""

from collections.abc import Callable
from typing import Any

import deepspeed
from deepspeed.utils import set_z3_leaf_module
from torch import nn

from megatape.distributed.mesh import Axis, Mesh
from megatape.nn.gathered_unit import GatheredUnit
from megatape.zero.setup.mpu import Mpu
from megatape.zero.stages.fragment import local_numel


def build_sharded(
    build_module: Callable[[Axis], nn.Module],
    ds_config: dict[str, Any],
    mesh: Mesh,
    mpu: Mpu,
) -> nn.Module:
    """Build the module. At stage 3, DeepSpeed shards each weight when it is made.

    Args:
        build_module: Builds this rank's share of the module on a tensor axis.
        ds_config: DeepSpeed's configuration.
        mesh: Mesh over all ranks.
        mpu: The mesh behind DeepSpeed's interface.
    """
    # Without a dtype, zero.Init reads the right one from its configuration. On a CPU it would turn any explicit dtype into
    # bfloat16, even float32.
    sharded = deepspeed.zero.Init(
        data_parallel_group=mesh["replicate"].group,
        mpu=mpu,
        config_dict_or_path=ds_config,
        enabled=ds_config["zero_optimization"]["stage"] == 3,
    )
    with sharded:
        module = build_module(mesh["tensor"])
    for part in module.modules():
        if isinstance(part, GatheredUnit):
            set_z3_leaf_module(part, True)
    return module


def with_small_bucket(ds_config: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return DeepSpeed's configuration with a bucket no larger than this rank's gradients.

    DeepSpeed allocates the full bucket even if there are few gradients.
    """
    num_trained = sum(local_numel(parameter) for parameter in module.parameters() if parameter.requires_grad)
    section = ds_config["zero_optimization"]
    bucket_size = min(section["reduce_bucket_size"], num_trained)
    return ds_config | {"zero_optimization": section | {"reduce_bucket_size": bucket_size}}
