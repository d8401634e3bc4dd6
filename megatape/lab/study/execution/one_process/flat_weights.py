"""Weights and gradients of a model in one tensor for each parameter group, so that a step takes few operations."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from megatape.config import OptimizerConfig
from megatape.nn.parameters import spec_of
from megatape.optim.optimizer import parameter_groups

# Added to the gradient norm before dividing by it, with DeepSpeed's value.
CLIP_EPS = 1e-6


class FlatWeights:
    """Weights and gradients in one tensor for each parameter group. The model's parameters become views of them.

    Args:
        named_parameters: All parameters of the model, by name.
        config: Section `optimizer` of the configuration.

    Attributes:
        groups: Parameter groups, each with one flat parameter and the keys `weight_decay` and `scale` (optim/optimizer.py).
    """

    def __init__(self, named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> None:
        self.groups: list[dict[str, Any]] = []
        self._bounded: list[tuple[nn.Parameter, float, float]] = []
        for group in parameter_groups(named_parameters, config):
            flat = _flatten(group["params"])
            self.groups.append({"params": [flat], "weight_decay": group["weight_decay"], "scale": group["scale"]})
            for parameter in group["params"]:
                bounds = spec_of(parameter).bounds
                if bounds is not None:
                    self._bounded.append((parameter, *bounds))
        self.gradients = [group["params"][0].grad for group in self.groups]

    def zero_gradients(self) -> None:
        """Set all gradients to zero."""
        for gradient in self.gradients:
            gradient.zero_()

    def gradient_norm(self) -> Tensor:
        """Return the norm of all gradients, a tensor without dimensions."""
        norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in self.gradients])
        return torch.linalg.vector_norm(norms)

    def clip(self, norm: Tensor, max_norm: float) -> None:
        """Scale the gradients down to a maximum norm.

        Args:
            norm: Norm of all gradients.
            max_norm: Maximum norm, 0 for no clipping.
        """
        if not max_norm:
            return
        divisor = ((norm + CLIP_EPS) / max_norm).clamp(min=1.0)
        for gradient in self.gradients:
            gradient.div_(divisor)

    @torch.no_grad()
    def keep_within_bounds(self) -> None:
        """Clip weights to their declared bounds."""
        for parameter, low, high in self._bounded:
            parameter.clamp_(low, high)


@torch.no_grad()
def _flatten(parameters: list[nn.Parameter]) -> nn.Parameter:
    """Return one parameter holding all of them and their gradients, of which they become views."""
    flat = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    flat.grad = torch.zeros_like(flat)
    begin = 0
    for parameter in parameters:
        end = begin + parameter.numel()
        parameter.data = flat.data[begin:end].view(parameter.shape)
        parameter.grad = flat.grad[begin:end].view(parameter.shape)
        begin = end
    return flat
