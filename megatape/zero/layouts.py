"""Layouts of the ZeRO stages: where each stage keeps a rank's share of the master weights.

They use private names of DeepSpeed, read from version 0.19.8. Its public accessors (`deepspeed.utils.safe_get_...`) return
copies of whole tensors, one parameter at a time. Checkpoints and initial weights need this rank's piece of each, in place.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from deepspeed import DeepSpeedEngine
from deepspeed.utils import safe_get_local_grad, safe_set_local_grad
from torch import Tensor


@dataclass(frozen=True)
class Fragment:
    """Location of a run of elements of a rank's share of a parameter.

    Attributes:
        start: Index of the first element in the share.
        flat: Tensor that holds the run. The optimizer's state is filed under it.
        offset: Index of the first element in `flat`.
        size: Number of elements.
    """

    start: int
    flat: Tensor
    offset: int
    size: int

    def values(self, tensor: Tensor | None = None) -> Tensor:
        """Return the run's elements, flat and writable.

        Args:
            tensor: Tensor in the shape of `flat` to take them from, by default `flat` itself.
        """
        if tensor is None:
            tensor = self.flat.data
        return tensor.view(-1).narrow(0, self.offset, self.size)


class Layout(ABC):
    """Division of master weights and optimizer state over the data axis at a ZeRO stage.

    Args:
        engine: DeepSpeed's engine.
    """

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = engine
        self._optimizer = engine.optimizer

    @abstractmethod
    def flats(self) -> list[Tensor]:
        """Return the tensors that the optimizer updates on this rank: from stage 1 on one per group (sub-group at stage 3)."""

    @abstractmethod
    def fragment(self, parameter: Any) -> Fragment | None:
        """Return the location of this rank's part of a parameter, without padding; None if it has no part."""

    @abstractmethod
    def is_replicated(self, parameter: Any) -> bool:
        """Whether every data-parallel rank holds the same part."""

    @abstractmethod
    def accumulated_gradient(self, parameter: Any) -> Tensor | None:
        """Return the gradient of this rank's part of a trained parameter, between the last backward pass and the update.

        Returns:
            The accumulated gradient, averaged over the data-parallel ranks; None if this rank has no part of the parameter, or
            the parameter has no gradient.
        """

    @abstractmethod
    def set_accumulated_gradient(self, parameter: Any, value: Tensor) -> None:
        """Replace the elements of `accumulated_gradient`, which is not None, by `value` (float32 [elements])."""

    @abstractmethod
    def copy_masters_to_weights(self, parameters: list[Any]) -> None:
        """Copy the masters of trained parameters to the compute weights. Collective."""


class Stage0(Layout):
    """Layout in which every rank holds all parameters, which are the masters themselves."""

    def flats(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def fragment(self, parameter: Any) -> Fragment:
        return whole_fragment(parameter)

    def is_replicated(self, parameter: Any) -> bool:
        return True

    def accumulated_gradient(self, parameter: Any) -> Tensor | None:
        gradient: Tensor | None = parameter.grad
        return gradient

    def set_accumulated_gradient(self, parameter: Any, value: Tensor) -> None:
        parameter.grad.copy_(value.view_as(parameter.grad))

    def copy_masters_to_weights(self, parameters: list[Any]) -> None:
        """Do nothing: the parameters are both."""


class Stage12(Layout):
    """Layout in which a group's masters are one flat tensor, divided into a run per rank; compute weights are whole."""

    def flats(self) -> list[Tensor]:
        return self._optimizer.single_partition_of_fp32_groups

    def fragment(self, parameter: Any) -> Fragment | None:
        if not parameter.requires_grad:
            return whole_fragment(parameter)
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


class Stage3(Layout):
    """Layout in which every parameter is divided into runs of equal size, the last one padded; compute weights too."""

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
        return Fragment(start, flat, offset, min(size, parameter.ds_numel - start))

    def is_replicated(self, parameter: Any) -> bool:
        return False

    def accumulated_gradient(self, parameter: Any) -> Tensor:
        gradient: Tensor = safe_get_local_grad(parameter)
        return gradient

    def set_accumulated_gradient(self, parameter: Any, value: Tensor) -> None:
        safe_set_local_grad(parameter, value)

    def copy_masters_to_weights(self, parameters: list[Any]) -> None:
        # Release small weights, which stay gathered from earlier steps.
        self._engine.empty_partition_cache()
        for parameter in self._engine.module.parameters():
            # hpZ makes its copy again from the weight when the weight is next released.
            parameter.ds_secondary_tensor = None
        for parameter in parameters:
            assert parameter.data.numel() == 0, "the weight is gathered: its copy would be stale"
            master = self.fragment(parameter).values()
            parameter.ds_tensor.data.zero_()
            parameter.ds_tensor.data.narrow(0, 0, master.numel()).copy_(master)


LAYOUTS: dict[int, type[Layout]] = {0: Stage0, 1: Stage12, 2: Stage12, 3: Stage3}


def whole_fragment(parameter: Any) -> Fragment:
    """Return the fragment of a parameter that every data-parallel rank holds whole."""
    return Fragment(0, parameter, 0, parameter.numel())


def local_shape(parameter: Any) -> tuple[int, ...]:
    """Return the shape of this rank's share of a parameter, which stage 3 replaces by an empty tensor."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def local_numel(parameter: Any) -> int:
    """Return the number of elements of this rank's share of a parameter."""
    return getattr(parameter, "ds_numel", parameter.numel())
