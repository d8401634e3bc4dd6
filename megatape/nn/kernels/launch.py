"""Launches of our own kernels. On the meta device a launch is an operator of PyTorch, which computes nothing."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

torch.library.define("megatape::launch", "(Tensor[] tensors, float flops, str kernel) -> ()")
torch.library.impl("megatape::launch", "Meta")(lambda tensors, flops, kernel: None)
register_flop_formula(torch.ops.megatape.launch)(lambda tensors, flops, kernel, **_: flops)


def has_kernels(device: torch.device) -> bool:
    """Whether our kernels can be launched there; on shapes alone they compute nothing."""
    return device.type in ("cuda", "meta") and find_spec("triton") is not None


def launch(kernel: Any, grid: tuple[int, ...], flops: float, warps: int, stages: int, arguments: dict[str, Any]) -> None:
    """Run a Triton kernel.

    Dispatch modes of PyTorch (torch.utils.flop_counter among them) count it on the meta device.

    Args:
        kernel: the kernel.
        grid: its numbers of programs.
        flops: floating-point operations of its matrix products.
        warps: warps of each program.
        stages: steps that the loops of a program load ahead.
        arguments: of the kernel, by name.
    """
    tensors = [argument for argument in arguments.values() if isinstance(argument, Tensor)]
    if tensors[0].is_meta:
        torch.ops.megatape.launch(tensors, flops, kernel.__name__)
    else:
        kernel[grid](**arguments, num_warps=warps, num_stages=stages)
