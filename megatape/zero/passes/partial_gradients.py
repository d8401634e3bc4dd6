"""Sums partial gradients over tensor-parallel ranks, for weights that all of them hold whole."""

import torch
import torch.distributed as dist

from megatape.zero.state.zero_state import ZeroState


class PartialGradients:
    """Gradients of weights replicated on all tensor-parallel ranks.

    Each rank uses such a weight on its own tokens or heads, so its backward pass computes a part of the gradient. One
    all-reduce per step sums the parts, only for elements that this rank updates: by then ZeRO has summed the gradients over
    the data-parallel ranks and sharded them. Accumulated gradients are float32 in every precision.

    Args:
        state: Engine state.
        offloaded: Whether ZeRO keeps gradients in host memory (zero.offload_optimizer).

    Attributes:
        names: Weight names, empty with a single tensor-parallel rank.
    """

    def __init__(self, state: ZeroState, offloaded: bool) -> None:
        self._state = state
        self._offloaded = offloaded
        trained = [name for name, parameter in state.parameters.items() if parameter.requires_grad]
        self.names = [name for name in trained if "tensor" in state.shared_axes(name)]

    @torch.no_grad()
    def sum_parts(self) -> None:
        """Sum the gradients over the tensor-parallel ranks, after a step's last backward pass. Collective."""
        device = self._state.device
        if self.names and self._offloaded and device.type == "cuda":
            # ZeRO may still be copying gradients to host memory.
            torch.cuda.synchronize(device)
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
