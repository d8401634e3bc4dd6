"""One small forward and backward pass by a backend on the device at hand, before a run relies on it.

What a backend does not support is known beforehand (Backend.unsupported_reason). A kernel without a backward pass, a missing
compiler, tiles that need more shared memory than the GPU has, or wrong results show here.
"""

import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from megatape.attention.backend import Need, Sizes
from megatape.attention.bias import DistanceBias
from megatape.attention.operation import get_backend
from megatape.attention.rotation import PositionState

LOG = logging.getLogger(__name__)

REFERENCE = "blocked"  # plain PyTorch, in float32
WORST = 0.1  # relative difference from it: ten times what rounding to bfloat16 makes


def failure(name: str, need: Need, sizes: Sizes, device: torch.device) -> str:
    """What goes wrong when a backend runs forward and backward on one sample of sizes.tokens tokens; "" if nothing does."""
    return mismatch(*(partial(_results, backend, need, sizes, device) for backend in (name, REFERENCE)))


def mismatch(actual: Callable[[], list[Tensor]], reference: Callable[[], list[Tensor]]) -> str:
    """The error of `actual`, or that its results differ from those of `reference` by more than rounding; "" if neither."""
    try:
        pairs = zip(actual(), reference(), strict=True)
        worst = float(torch.stack([(a.float() - b.float()).norm() / b.float().norm() for a, b in pairs]).max())
    except Exception as error:  # whatever a kernel, its compiler or its driver raises
        LOG.debug("raised when a backend was tried:", exc_info=True)
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return "" if worst <= WORST else f"its results are off by {worst:.0%}"


def _results(name: str, need: Need, sizes: Sizes, device: torch.device) -> list[Tensor]:
    """Outputs and gradients. A bias by distance stands for any bias."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = need.dtype) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    backend, length = get_backend(name), sizes.tokens
    q, k, v = (draw(1, length, heads, sizes.head_dim) for heads in (sizes.heads, sizes.channels, sizes.channels))
    tokens = torch.arange(length, device=device)
    mask = (tokens - tokens % (length // 2 + 1))[None] if need.masked else None  # two documents
    initial = draw(1, length, 1, sizes.state_width or sizes.head_dim, dtype=torch.float32).detach()
    if need.attends == "moving":
        delta = draw(1, length, sizes.channels, sizes.state_width)
        found, given = backend.attend(q, k, v, PositionState(initial, delta), None, mask, True), [q, k, v, delta]
    elif need.attends == "plain":
        found, given = backend.attend(q, k, v, PositionState(initial), None, mask, False), [q, k, v]
    else:
        weights = draw(sizes.heads, length, dtype=torch.float32)
        found, given = backend.attend(q, k, v, None, DistanceBias(weights), mask, False), [q, k, v, weights]
    outputs = [output for output in found if output is not None]
    gradients = torch.autograd.grad([output.float().square().sum() for output in outputs], given)
    return [tensor.detach() for tensor in (*outputs, *gradients)]
