"""Attention backend and kernels failing on some ranks, and what a run then selects."""

import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from megatape.attention.attend import Backends
from megatape.attention.backends.blocked import Blocked
from megatape.attention.rotating_backend import rotated_heads
from megatape.attention.rotation import PositionState
from megatape.config import Config
from megatape.distributed.topology import Topology
from megatape.encodings.tape import TapeUpdate
from megatape.model.requirements import attention_requirements
from megatape.registry import Entry
from megatape.training.startup.engine.working_kernels import KernelTests

CPU = torch.device("cpu")
ROTATION = "megatape.attention.kernels.rotation"
FRAGILE = {"fragile": Entry(f"{__name__}:Fragile", "fails on rank 1")}


class Fragile(Blocked):
    def attend(self, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        if os.environ["RANK"] == "1":
            raise RuntimeError("out of resource: shared memory, required 247000")
        return super().attend(*arguments)


class BrokenUpdate(TapeUpdate):
    """Position update with a broken kernel on rank 1, forgetting the gain of attention's update and so its gradient."""

    def has_kernel(self, device: torch.device) -> bool:
        return True

    def _update_by_kernel(self, initial: Tensor, delta: Tensor | None, attended_state: Tensor | None, m: Tensor) -> Tensor:
        if os.environ["RANK"] == "1" and attended_state is not None:
            attended_state = attended_state / self.gain[:, None]
        return self._update(initial, delta, attended_state, m)


class FragileRotation:
    """Rotation kernel failing on rank 1 because of its driver. With `drops_gradient`, rank 0 computes no gradient of e."""

    drops_gradient = False

    @classmethod
    def apply(
        cls, q: Tensor, k: Tensor, initial: Tensor, delta: Tensor | None, averages_state: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if os.environ["RANK"] == "1":
            raise RuntimeError("out of resource: shared memory, required 247000")
        if cls.drops_gradient and delta is not None:
            delta = delta.detach() + 0 * delta
        return rotated_heads(q, k, PositionState(initial, delta), averages_state, by_kernel=False)


def fragile_rotation() -> ModuleType:
    """Return a stand-in for the rotation kernel's module, which needs triton."""
    module = ModuleType(ROTATION)
    module.KernelRotation = FragileRotation  # type: ignore[attr-defined]
    return module


def kernel_tests(config: Config, topology: Topology, device: torch.device = CPU) -> KernelTests:
    """Return the tests that a run makes with its kernels."""
    dtype = getattr(torch, config.training.precision)
    return KernelTests(config.model, dtype, config.data.sequence_length, device, topology)


def backends_of(config: Config, device: torch.device, topology: Topology) -> Backends:
    """Return a run's working backends."""
    requirements = attention_requirements(config, device.type)
    kernels = kernel_tests(config, topology, device)
    return kernels.working_backends(requirements, config.training.attention, rotation_by_kernel=False)


def updates_of(config: Config, topology: Topology) -> bool:
    """Whether a run updates the position state by kernels."""
    return kernel_tests(config, topology).updates_by_kernel(config.parallel.tp)


def rotations_of(config: Config, topology: Topology) -> bool:
    """Whether kernels rotate queries and keys in a run."""
    return kernel_tests(config, topology).rotates_by_kernel()


def loss_of(config: Config, topology: Topology) -> bool:
    """Whether a run computes its loss by a kernel."""
    return kernel_tests(config, topology).computes_loss_by_kernel(config.training.z_loss)
