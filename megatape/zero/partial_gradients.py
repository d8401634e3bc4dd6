"""Sums partial gradients: tensor-parallel ranks each compute a part of the gradient of a weight that all of them hold whole."""

import torch
import torch.distributed as dist

from megatape.zero.state import ZeroState


class PartialGradients:
    """Gradients of the weights that every tensor-parallel rank holds whole.

    Each of these ranks uses such a weight on its own tokens or heads, so a backward pass gives it a part of the gradient.
    Accumulated gradients are float32 in every precision, and ZeRO has already summed them over the data-parallel ranks and
    divided them among these. So the parts are summed once a step, in one all-reduce of the elements that this rank updates.

    Args:
        state: State of the engine.
        offloaded: Whether ZeRO keeps gradients in host memory (zero.offload_optimizer).

    Attributes:
        names: Names of the weights, empty with a single tensor-parallel rank.
    """

    def __init__(self, state: ZeroState, offloaded: bool) -> None:
        self._state = state
        self._offloaded = offloaded
        trained = [name for name, parameter in state.parameters.items() if parameter.requires_grad]
        self.names = [name for name in trained if "tensor" in state.shared_axes(name)]

    @torch.no_grad()
    def sum_parts(self) -> None:
        """Sum the gradients over the tensor-parallel ranks, after the last backward pass of a step. Collective."""
        device = self._state.device
        if self.names and self._offloaded and device.type == "cuda":
            torch.cuda.synchronize(device)  # ZeRO may still be copying gradients to host memory.
        parts = {}
        for name in self.names:
            gradient = self._state.accumulated_gradient(name)
            if gradient is not None:
                parts[name] = gradient.reshape(-1).to(device, torch.float32)
        if not parts:
            return
        flat = torch.cat(list(parts.values()))
        dist.all_reduce(flat, group=self._state.mesh["tensor"].group)
        sums = flat.split([part.numel() for part in parts.values()])
        for name, total in zip(parts, sums, strict=True):
            self._state.set_accumulated_gradient(name, total)
