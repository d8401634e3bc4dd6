"""ZeRO stage 3: compute weights are sharded as well."""

from typing import Any

from deepspeed import DeepSpeedEngine
from deepspeed.utils import safe_get_local_grad, safe_set_local_grad
from torch import Tensor

from megatape.zero.stages.fragment import Fragment
from megatape.zero.stages.hooks import trim_zero3_hooks
from megatape.zero.stages.joint_norm import compute_norms_jointly
from megatape.zero.stages.stage import ZeroStage


class Stage3(ZeroStage):
    """Stage at which masters and compute weights of each parameter are split into runs of equal size, the last one padded."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        super().__init__(engine)
        trim_zero3_hooks(engine.module)
        compute_norms_jointly(self._optimizer)

    def flats(self) -> list[Tensor]:
        return self._optimizer.fp32_partitioned_groups_flat

    def fragment(self, parameter: Any) -> Fragment:
        if parameter.requires_grad:
            group, offset, size = self._optimizer.grad_position[parameter.ds_id]
            flat = self.flats()[group]
        else:
            flat = parameter.ds_tensor.data
            offset = 0
            size = parameter.ds_tensor.ds_numel
        start = min(size * self._optimizer._get_param_partition_rank(parameter), parameter.ds_numel)
        unpadded_size = min(size, parameter.ds_numel - start)
        return Fragment(start, flat, offset, unpadded_size)

    def is_replicated(self, parameter: Any) -> bool:
        return False

    def compute_weight(self, parameter: Any) -> Tensor:
        weight: Tensor = parameter.ds_tensor.data
        return weight

    def accumulated_gradient(self, parameter: Any) -> Tensor:
        gradient: Tensor = safe_get_local_grad(parameter)
        return gradient

    def set_accumulated_gradient(self, parameter: Any, value: Tensor) -> None:
        safe_set_local_grad(parameter, value)

    def copy_masters_to_weights(self, parameters: list[Any]) -> None:
        # Release small weights, which stay gathered from earlier steps.
        self._engine.empty_partition_cache()
        for parameter in self._engine.module.parameters():
            # hpZ copies the new weight the next time that the weight is released.
            parameter.ds_secondary_tensor = None
        for parameter in parameters:
            assert parameter.data.numel() == 0, "the weight is gathered: its copy would be stale"
            master = self.fragment(parameter).values()
            parameter.ds_tensor.data.zero_()
            parameter.ds_tensor.data.narrow(0, 0, master.numel()).copy_(master)
