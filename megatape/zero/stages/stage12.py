"""ZeRO stages 1 and 2: optimizer state is sharded, and at stage 2 gradients as well."""

from typing import Any

from deepspeed import DeepSpeedEngine
from torch import Tensor

from megatape.zero.stages.fragment import Fragment, unsharded_fragment
from megatape.zero.stages.joint_norm import compute_norms_jointly
from megatape.zero.stages.local_gradients import sum_gradients_locally
from megatape.zero.stages.stage import ZeroStage


class Stage12(ZeroStage):
    """Stages at which a group's masters are one flat tensor, split into a run per rank. Compute weights are whole."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        super().__init__(engine)
        compute_norms_jointly(self._optimizer)
        sum_gradients_locally(engine)

    def flats(self) -> list[Tensor]:
        return self._optimizer.single_partition_of_fp32_groups

    def fragment(self, parameter: Any) -> Fragment | None:
        if not parameter.requires_grad:
            return unsharded_fragment(parameter)
        mapping = parameter._hp_mapping
        if mapping is None:
            return None
        master = mapping.hp_fragment_address
        flat = self.flats()[mapping.param_group_index]
        return Fragment(mapping.lp_fragment_address.start, flat, master.start, master.numel)

    def is_replicated(self, parameter: Any) -> bool:
        return not parameter.requires_grad

    def accumulated_gradient(self, parameter: Any) -> Tensor | None:
        mapping = parameter._hp_mapping
        if mapping is None:
            return None
        gradient: Tensor = mapping.get_lp_grad_fragment(parameter._index_in_param_group)
        return gradient

    def set_accumulated_gradient(self, parameter: Any, value: Tensor) -> None:
        gradient = self.accumulated_gradient(parameter)
        assert gradient is not None
        gradient.copy_(value.view_as(gradient))
        if self._optimizer.cpu_offload:
            # The backward pass has recorded the norm of the old elements.
            norms = self._optimizer.norm_for_param_grads
            number = self._optimizer.get_param_id(parameter)
            if number in norms:
                norms[number] = gradient.double().norm()

    def copy_masters_to_weights(self, parameters: list[Any]) -> None:
        self._optimizer.update_lp_params()
