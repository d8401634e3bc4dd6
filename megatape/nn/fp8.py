"""Linear layers in FP8, by torchao: each matrix is scaled to FP8's range and rounded right before multiplying.

Scales are dynamic: they come from the largest element of the matrix, its row or its column, depending on torchao's recipe.
Autograd saves x and the weight, not their FP8 copies. Several layers share x.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from megatape.errors import UserError
from megatape.nn.linear_function import LinearFunction
from megatape.nn.remat.remat import Remat
from megatape.utils.files.project_files import install_command
from megatape.utils.pytorch.torch_internals import storage_id

# Lowest compute capability with FP8 matmuls (Ada); Hopper is (9, 0).
CAPABILITY = (8, 9)


def fp8_linear_function(recipe: str, device: torch.device) -> LinearFunction:
    """Return a function that computes F.linear in FP8. A CPU only emulates the rounding.

    Args:
        recipe: Name of torchao's recipe.
        device: Device to multiply on.

    Raises:
        UserError: torchao is missing, or the GPU does not multiply in FP8.
    """
    emulated = device.type == "cpu"
    if not emulated and torch.cuda.get_device_capability(device) < CAPABILITY:
        name = torch.cuda.get_device_name(device)
        capability = ".".join(map(str, CAPABILITY))
        raise UserError(
            f"{name} does not multiply in FP8: that takes compute capability {capability} or more (H100, H200, B200, L40S); "
            "set training.fp8 to none"
        )
    # torchao warns about kernels that this machine cannot load. None of them is used here.
    disabled_before = logging.root.manager.disable
    logging.disable(max(disabled_before, logging.WARNING))
    try:
        from torchao.float8 import Float8LinearConfig
        from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args
    except ImportError as error:
        raise UserError(
            f"torchao cannot be imported ({error}): {install_command('fp8')}, or set training.fp8 to none"
        ) from None
    finally:
        logging.disable(disabled_before)
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulated)
    matmul_config = Float8Linear(1, 1, bias=False, config=config, device="meta").linear_mm_config

    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None, remat: Remat | None = None) -> Tensor:
        matching = None if remat is None else remat.matching(x)
        with _saving_recipe(x, matching):
            output: Tensor = matmul_with_hp_or_float8_args.apply(x, weight.t(), matmul_config, config)
        if bias is None:
            return output
        return output + bias

    return multiply


def _saving_recipe(x: Tensor, remat: Remat | None) -> AbstractContextManager[None]:
    """Return a context inside which autograd saves the arguments in x's recipe instead of x."""
    if remat is None:
        return nullcontext()
    shared_input = remat.shared_input
    args = remat.recipe.args
    memory_of_x = storage_id(x)

    def pack(saved: Tensor) -> Tensor | None:
        if storage_id(saved) != memory_of_x:
            return saved
        shared_input.add_consumer()
        return None

    def unpack(saved: Tensor | None) -> Tensor:
        if saved is not None:
            return saved
        shared_input.begin(args)
        return shared_input.finish()

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
