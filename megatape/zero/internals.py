"""Every private name of DeepSpeed that this package uses, read from version 0.19.8, and so the layout of each ZeRO stage.

DeepSpeed's public accessors (`deepspeed.utils.safe_get_...`) return copies of whole tensors, one
parameter at a time; checkpoints and initial weights need this rank's piece of each, in place.
tests/zero/test_internals.py lists the names, holds them against a running engine and fails with the
one that another version does not have.
"""

import importlib
import inspect
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import deepspeed.ops
from deepspeed import DeepSpeedEngine
from deepspeed.runtime.zero.config import ZERO_OPTIMIZATION
from deepspeed.runtime.zero.linear import LinearFunctionForZeroStage3
from deepspeed.utils import nvtx, safe_get_local_grad, safe_set_local_grad
from torch import Tensor, nn
from torch.autograd import Function

TESTED_VERSION = "0.19.8"  # Version of DeepSpeed with the internals used here.


def version_warning(installed: str) -> str:
    """Return a warning about an untested version of DeepSpeed, or "" for the tested one.

    Args:
        installed: Installed version. A local part, such as +cu130, is ignored.
    """
    if installed.partition("+")[0] == TESTED_VERSION:
        return ""
    return (
        f"DeepSpeed is {installed}, and only {TESTED_VERSION} was tested: MegaTAPE replaces parts of it, which may have "
        f"changed (docs/architecture.md); compare the first losses, or pip install deepspeed=={TESTED_VERSION}"
    )


@dataclass(frozen=True)
class Fragment:
    """Where ZeRO keeps a run of elements of a rank's share of a parameter.

    Attributes:
        start: index of the first element in the share.
        flat: tensor that holds the run; the optimizer's state is filed under it.
        offset: index of the first element in `flat`.
        size: number of elements.
    """

    start: int
    flat: Tensor
    offset: int
    size: int

    def values(self, tensor: Tensor | None = None) -> Tensor:
        """The run's elements, flat and writable, of `flat` or of another tensor of its shape."""
        return (self.flat.data if tensor is None else tensor).view(-1).narrow(0, self.offset, self.size)


class Layout:
    """Division of master weights and optimizer state over the data axis. At stage 0, as here, the parameters are the masters.

    Args:
        engine: of the run.
    """

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = engine
        self._optimizer = engine.optimizer

    def flats(self) -> list[Tensor]:
        """Tensors that the optimizer updates on this rank: from stage 1 on one for each group (sub-group at stage 3)."""
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def fragment(self, parameter: Any) -> Fragment | None:
        """Where this rank keeps its part of a parameter, without padding; None if it has no part."""
        return Fragment(0, parameter, 0, parameter.numel())

    def is_replicated(self, parameter: Any) -> bool:
        """Whether every data-parallel rank holds the same part."""
        return True

    def accumulated_gradient(self, parameter: Any) -> Tensor | None:
        """Return the gradient of this rank's part of a trained parameter, between the last backward pass and the update.

        Returns:
            The accumulated gradient, averaged over the data-parallel ranks; None if this rank has no part of the parameter, or
            the parameter has no gradient.
        """
        gradient: Tensor | None = parameter.grad
        return gradient

    def set_accumulated_gradient(self, parameter: Any, value: Tensor) -> None:
        """Replace the numbers of `accumulated_gradient`, which is not None, by `value` (float32 [elements])."""
        parameter.grad.copy_(value.view_as(parameter.grad))

    def publish(self, parameters: list[Any]) -> None:
        """Copy the masters of trained parameters to the compute weights. Collective."""


class Stage12(Layout):
    """The masters of a group are one flat tensor, of which every rank holds a run; compute weights are whole."""

    def flats(self) -> list[Tensor]:
        return self._optimizer.single_partition_of_fp32_groups

    def fragment(self, parameter: Any) -> Fragment | None:
        if not parameter.requires_grad:
            return super().fragment(parameter)
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
        if self._optimizer.cpu_offload:  # the backward pass has recorded the norm of the old numbers
            norms = self._optimizer.norm_for_param_grads
            number = self._optimizer.get_param_id(parameter)
            if number in norms:
                norms[number] = gradient.double().norm()

    def publish(self, parameters: list[Any]) -> None:
        self._optimizer.update_lp_params()


class Stage3(Layout):
    """Every parameter is divided into runs of equal size, the last one padded; compute weights too."""

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

    def publish(self, parameters: list[Any]) -> None:
        self._engine.empty_partition_cache()  # of steps before: small weights stay gathered
        for parameter in self._engine.module.parameters():
            parameter.ds_secondary_tensor = None  # of hpZ: it is made again from the weight when that is next released
        for parameter in parameters:
            assert parameter.data.numel() == 0, "the weight is gathered: its copy would be stale"
            master = self.fragment(parameter).values()
            parameter.ds_tensor.data.zero_()
            parameter.ds_tensor.data.narrow(0, 0, master.numel()).copy_(master)


LAYOUTS: dict[int, type[Layout]] = {0: Layout, 1: Stage12, 2: Stage12, 3: Stage3}


def gradient_norm(optimizer: Any) -> float:
    """Norm of the gradient before clipping, which DeepSpeed has computed when it calls the client's optimizer.

    It is negative where DeepSpeed found that it is not finite.
    """
    return float(optimizer._global_grad_norm)


def local_shape(parameter: Any) -> tuple[int, ...]:
    """Shape of this rank's share of a parameter, which stage 3 replaces by an empty tensor."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def local_numel(parameter: Any) -> int:
    """Number of elements of this rank's share of a parameter."""
    return getattr(parameter, "ds_numel", parameter.numel())


def trim_zero3_hooks(module: nn.Module) -> None:
    """Remove per-call overhead from the hooks of a module that DeepSpeed has initialized at stage 3.

    Their autograd functions define `setup_context`. At each call of such a function torch inspects
    the signature of `forward`, which is stored here instead. NVTX ranges are switched off: those of
    training/callbacks/profile.py take their place.
    """
    nvtx.enable_nvtx = False
    _store_signature(LinearFunctionForZeroStage3)
    for part in map(vars, module.modules()):
        _store_signature(part["pre_bwd_fn"])
        _store_signature(part["post_bwd_fn"])


def _store_signature(function: type[Function]) -> None:
    forward: Any = function.forward
    forward.__signature__ = inspect.signature(forward)


def disable_compiled_ops() -> None:
    """Keep DeepSpeed from compiling a shared-memory operator on a CPU, which needs a C++ compiler and is not used here."""
    deepspeed.ops.__compatible_ops__ = {}


def same_optimizer_at_stages_1_and_2() -> AbstractContextManager[Any]:
    """Engines that are made inside have one class of optimizer at stages 1 and 2.

    For bfloat16 at stage 1 with gradients summed in float32, DeepSpeed would take another, whose layout is not that of Stage12.
    """

    def choose(engine: DeepSpeedEngine, _: Any) -> str | None:
        return ZERO_OPTIMIZATION if engine.zero_optimization() else None

    return patch.object(DeepSpeedEngine, "_do_optimizer_sanity_check", choose)


def import_muon_uncompiled() -> None:
    """Import DeepSpeed's Muon, which it does in any case, without having its kernels compiled, which imports the compiler."""
    with patch("deepspeed.runtime.compiler.compile", lambda: lambda kernel: kernel):
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
