"""Smoke tests of attention backends and our own Triton kernels.

Each test runs forward and backward passes on the actual device before training relies on them. Backends declare what they do
not support (Backend.unsupported_reason). The tests find everything else: a missing backward pass, a missing compiler, tiles
exceeding the GPU's shared memory, wrong results.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.backend import AttentionRequirements
from megatape.attention.bias import DistanceBias
from megatape.attention.fused_rotation import rotated_heads
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of
from megatape.nn.kernels.launch import has_kernels
from megatape.nn.loss import LossFormula, cross_entropy
from megatape.nn.targets import IGNORE_INDEX

LOG = logging.getLogger(__name__)

# Reference backend: plain PyTorch, computing in float32
REFERENCE = "blocked"

# Maximum relative error against the reference, ten times the rounding error of bfloat16
MAX_RELATIVE_ERROR = 0.1

# Hidden size for testing the loss. It is small, because the vocabulary already takes time.
LOSS_HIDDEN_SIZE = 64


@dataclass(frozen=True)
class BackendTrial:
    """Sample for testing backends, and the device.

    Attributes:
        groups: Number of query heads, sharing one key/value head.
        state_width: Width of the state that attention moves, 0 without one.
        tokens: Number of tokens.
        device: Device to run on.
        rotation_by_kernel: Whether our own Triton kernels rotate queries and keys before PyTorch's attention.
    """

    groups: int
    state_width: int
    tokens: int
    device: torch.device
    rotation_by_kernel: bool = False


def smoke_test_backend(name: str, layers: Iterable[AttentionRequirements], trial: BackendTrial) -> str | None:
    """Run a backend forward and backward on one sample.

    Args:
        name: Backend name.
        layers: Requirements of the layers to test.
        trial: Sample and device.

    Returns:
        The reason why the backend does not work, or None if it does.
    """
    for requirements in layers:
        run = partial(_run_backend, requirements=requirements, trial=trial)
        reason = _compare(partial(run, name), partial(run, REFERENCE))
        if reason is not None:
            return reason
    return None


def smoke_test_rotation(model: ModelConfig, dtype: torch.dtype, tokens: int, device: torch.device) -> str | None:
    """Compare the kernels rotating queries and keys with PyTorch's operators, forward and backward.

    Args:
        model: Model configuration.
        dtype: Compute precision.
        tokens: Number of tokens.
        device: Device to run on.

    Returns:
        The reason why the kernels do not work, or None if they do. Also None if the device or the encoding does not use them.
    """
    encoding = encoding_of(model)
    if not encoding.has_position_tensor or not has_kernels(device):
        return None
    random_tensor = _RandomTensors(device, dtype)
    q = random_tensor(1, tokens, model.num_heads, model.head_dim)
    k = random_tensor(1, tokens, model.num_kv_heads, model.head_dim)
    inputs = [q, k]
    delta = None
    if encoding.carries_state:
        delta = random_tensor(1, tokens, model.num_kv_heads, encoding.state_width)
        inputs.append(delta)
    initial = encoding.state(torch.arange(tokens, device=device)[None])
    state = PositionState(initial, delta)

    def run(by_kernel: bool) -> list[Tensor]:
        outputs = [output for output in rotated_heads(q, k, state, encoding.moves_state, by_kernel) if output is not None]
        losses = [output.float().square().sum() for output in outputs]
        gradients = torch.autograd.grad(losses, inputs)
        return [tensor.detach() for tensor in (*outputs, *gradients)]

    return _compare(partial(run, True), partial(run, False))


def smoke_test_update(
    model: ModelConfig, dtype: torch.dtype, tokens: int, device: torch.device, *, num_tensor_ranks: int = 1
) -> str | None:
    """Compare the kernels of the position update with the plain update, forward and backward, in a layer after the first.

    Args:
        model: Model configuration.
        dtype: Compute precision.
        tokens: Number of tokens.
        device: Device to run on.
        num_tensor_ranks: Number of tensor-parallel ranks.

    Returns:
        The reason why the kernels do not work, or None if they do. Also None if they do not support the update.
    """
    encoding = encoding_of(model)
    update = encoding.update(SINGLE)
    if update is None or not update.has_kernel(device):
        return None
    random_tensor = _RandomTensors(device, dtype)
    for weight in update.parameters():
        torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5, generator=random_tensor.generator)
    update.to(device, dtype)
    initial = encoding.state(torch.arange(tokens, device=device)[None])
    delta = random_tensor(1, tokens, model.num_kv_heads, encoding.state_width)
    m = random_tensor(1, tokens, model.hidden_size)
    attended = None
    # Tensor-parallel ranks do attention's part of the update before they exchange it.
    if encoding.moves_state and num_tensor_ranks == 1:
        attended = random_tensor(1, tokens, model.num_heads, encoding.state_width)
    inputs = [tensor for tensor in (delta, attended, m, *update.parameters()) if tensor is not None]

    def run(by_kernel: bool) -> list[Tensor]:
        update.use_kernels(by_kernel)
        output = update(PositionState(initial, delta), attended, m).delta
        assert output is not None
        gradients = torch.autograd.grad(output.float().square().sum(), inputs, allow_unused=True)
        return [tensor.detach() for tensor in (output, *gradients) if tensor is not None]

    return _compare(partial(run, True), partial(run, False))


def smoke_test_loss(formula: LossFormula, dtype: torch.dtype, tokens: int, device: torch.device) -> str | None:
    """Compare our loss kernel with PyTorch's operators, forward and backward.

    Args:
        formula: Loss as a function of the logits.
        dtype: Compute precision.
        tokens: Number of tokens.
        device: Device to run on.

    Returns:
        The reason why the kernel does not work, or None if it does. Also None if the device has no kernel.
    """
    if not has_kernels(device):
        return None
    random_tensor = _RandomTensors(device, dtype)
    x = random_tensor(1, tokens, LOSS_HIDDEN_SIZE)
    weight = random_tensor(formula.vocab_size, LOSS_HIDDEN_SIZE)
    targets = torch.randint(formula.vocab_size, (1, tokens), generator=random_tensor.generator).to(device)
    targets[0, 0] = IGNORE_INDEX

    def run(by_kernel: bool) -> list[Tensor]:
        loss = cross_entropy(x, weight, targets, formula._replace(by_kernel=by_kernel))
        gradients = torch.autograd.grad(loss, (x, weight))
        return [loss.detach(), *gradients]

    return _compare(partial(run, True), partial(run, False))


class _RandomTensors:
    """Draws inputs of a smoke test, always the same ones."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.randn(*shape, generator=self.generator)
        return values.to(self.device, dtype or self.dtype).requires_grad_()


def _run_backend(name: str, requirements: AttentionRequirements, trial: BackendTrial) -> list[Tensor]:
    """Return outputs and gradients of a backend.

    All backends get the same random inputs. A bias by distance stands in for every kind of bias.
    """
    groups = trial.groups
    tokens = trial.tokens
    device = trial.device
    random_tensor = _RandomTensors(device, requirements.dtype)
    query = random_tensor(1, tokens, groups, requirements.head_dim)
    key = random_tensor(1, tokens, 1, requirements.head_dim)
    value = random_tensor(1, tokens, 1, requirements.head_dim)

    document_starts = None
    if requirements.masked:
        # Two documents, the first one a little longer.
        document_length = tokens // 2 + 1
        index = torch.arange(tokens, device=device)
        document_starts = (index - index % document_length)[None]

    state_width = trial.state_width or requirements.head_dim
    initial = random_tensor(1, tokens, 1, state_width, dtype=torch.float32).detach()
    delta = None
    if requirements.moves_state:
        delta = random_tensor(1, tokens, 1, trial.state_width)

    bias_weights = None
    bias = None
    if requirements.bias != "none":
        bias_weights = random_tensor(groups, tokens, dtype=torch.float32)
        bias = DistanceBias(bias_weights)

    # A bias is tested without rotation, unless the state moves as well.
    state = None
    if requirements.moves_state or bias is None:
        state = PositionState(initial, delta)

    backend = get_backend(name, trial.rotation_by_kernel)
    content, moved_state = backend.attend(query, key, value, state, bias, document_starts, requirements.moves_state)

    outputs = [content]
    if moved_state is not None:
        outputs.append(moved_state)
    inputs = [tensor for tensor in (query, key, value, delta, bias_weights) if tensor is not None]
    losses = [output.float().square().sum() for output in outputs]
    gradients = torch.autograd.grad(losses, inputs)
    return [tensor.detach() for tensor in (*outputs, *gradients)]


def _compare(run: Callable[[], list[Tensor]], run_reference: Callable[[], list[Tensor]]) -> str | None:
    """Return the reason why a kernel fails: the error it raises or the difference of its results. None if it works."""
    try:
        errors = []
        for actual, expected in zip(run(), run_reference(), strict=True):
            difference = actual.float() - expected.float()
            errors.append(difference.norm() / expected.float().norm())
        largest = float(torch.stack(errors).max())
    except Exception as error:  # Kernels, compilers and drivers may raise anything.
        LOG.debug("raised in a smoke test:", exc_info=True)
        message = f"{type(error).__name__}: {error}"
        return message.strip().splitlines()[0]
    # Not "largest > ...": it may be NaN.
    if largest <= MAX_RELATIVE_ERROR:
        return None
    return f"its results are off by {largest:.0%}"
