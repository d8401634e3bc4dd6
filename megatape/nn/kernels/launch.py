"""Launching our Triton kernels. On the meta device, a launch is a PyTorch operator that computes nothing."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

Argument = Tensor | int | float | bool | None


class Kernel(Protocol):
    """Kernel that Triton compiles.

    Attributes:
        arg_names: Names of its arguments.
    """

    __name__: str
    arg_names: list[str]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """Return a function launching a grid of programs."""
        ...


torch.library.define("megatape::launch", "(Tensor[] tensors, float flops, str kernel) -> ()")
torch.library.impl("megatape::launch", "Meta")(lambda tensors, flops, kernel: None)
register_flop_formula(torch.ops.megatape.launch)(lambda tensors, flops, kernel, **_: flops)


def has_kernels(device: torch.device) -> bool:
    """Whether our kernels can be launched on a device. On the meta device, a launch computes nothing."""
    return device.type in ("cuda", "meta") and find_spec("triton") is not None


def launch(
    kernel: Kernel,
    grid: tuple[int, ...],
    flops: float,
    warps: int,
    stages: int,
    arguments: Mapping[str, Argument],
) -> None:
    """Run a Triton kernel. On the meta device, dispatch modes such as FlopCounterMode see one operator.

    Args:
        kernel: Kernel to run.
        grid: Number of programs in each dimension.
        flops: Floating-point operations of the kernel's matrix products.
        warps: Number of warps per program.
        stages: Number of pipeline stages of a program's loops.
        arguments: Arguments of the kernel by name, at least one of them a tensor.
    """
    tensors = [argument for argument in arguments.values() if isinstance(argument, Tensor)]
    if tensors[0].is_meta:
        torch.ops.megatape.launch(tensors, flops, kernel.__name__)
    else:
        kernel[grid](**arguments, num_warps=warps, num_stages=stages)
