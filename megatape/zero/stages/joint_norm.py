"""Computes the gradient norm of stages 1 to 3 in few kernels.

DeepSpeed computes a norm for each weight, with two or three launches each, while the GPU waits for the decision about the
update.
"""

from typing import Any

import torch
from deepspeed.runtime.utils import is_model_parallel_parameter
from torch import Tensor

from megatape.utils.pytorch.torch_internals import norms


def compute_norms_jointly(optimizer: Any) -> None:
    """Let DeepSpeed's optimizer compute the norms of a group's gradients together.

    Args:
        optimizer: DeepSpeed's optimizer at stage 1, 2 or 3. Its `get_grad_norm_direct` is replaced.
    """
    norm_of = optimizer.get_grad_norm_direct

    def joint_norm(gradients: list[Tensor], parameters: list[Any], norm_type: float = 2) -> Tensor:
        counted_gradients = []
        counted_parameters = []
        unpadded = [gradient for gradient in gradients if not getattr(gradient, "_zero_padding", False)]
        # Gradients may end before the parameters: the last parameters have none.
        for gradient, parameter in zip(unpadded, parameters, strict=False):
            # Every tensor-parallel rank has the gradient of a replicated weight, and the first rank counts it.
            if is_model_parallel_parameter(parameter) or optimizer.model_parallel_rank == 0:
                counted_gradients.append(gradient)
                counted_parameters.append(parameter)
        if not counted_gradients:
            return norm_of(gradients, parameters, norm_type)  # type: ignore[no-any-return]
        # The norm of the norms is the norm of all gradients. DeepSpeed sums it over the ranks.
        joint = torch.stack(norms(counted_gradients, norm_type))
        return norm_of([joint], counted_parameters[:1], norm_type)  # type: ignore[no-any-return]

    optimizer.get_grad_norm_direct = joint_norm
