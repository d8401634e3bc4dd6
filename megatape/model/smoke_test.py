"""Smoke tests of attention backends and our own Triton kernels.

Backends declare what they do not support (Backend.unsupported_reason). Running them forward and backward on the actual device
finds everything else: a missing backward pass, a missing compiler, tiles exceeding the GPU's shared memory, wrong results.
"""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.backend import AttentionRequirements
from megatape.attention.bias import Decay, DistanceBias, ScoreBias
from megatape.attention.rotating_backend import rotated_heads
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of
from megatape.nn.kernels.launch import has_kernels
from megatape.nn.loss import LossFormula, cross_entropy
from megatape.nn.targets import IGNORE_INDEX

LOG = logging.getLogger(__name__)

# Reference backend: plain PyTorch, computing in float32.
REFERENCE = "blocked"

# Maximum relative error against the reference, ten times the rounding error of bfloat16.
MAX_RELATIVE_ERROR = 0.1

# Hidden size for testing the loss. It is small, because the vocabulary already takes time.
LOSS_HIDDEN_SIZE = 64


@dataclass(frozen=True)
class SmokeTest:
    """Sample for testing backends, and the device.

    Attributes:
        num_heads: Number of query heads, sharing one key/value head.
        state_width: Width of the state that attention moves, 0 without one.
        tokens: Number of tokens.
        device: Device to run on.
        rotation_by_kernel: Whether our own Triton kernels rotate queries and keys before PyTorch's attention.
    """

    num_heads: int
    state_width: int
    tokens: int
    device: torch.device
    rotation_by_kernel: bool = False


def smoke_test_backend(name: str, layers: Iterable[AttentionRequirements], test: SmokeTest) -> str | None:
    """Run a backend forward and backward on one sample.

    Args:
        name: Backend name.
        layers: Requirements of the layers to test.
        test: Sample and device.

    Returns:
        The reason why the backend does not work, or None if it does. If gradients must repeat, it runs twice.
    """
    for requirements in layers:
        run = partial(_run_backend, requirements=requirements, test=test)
        reason = _compare(partial(run, name), partial(run, REFERENCE))
        if reason is None and requirements.deterministic:
            reason = _guarded(partial(_find_difference, partial(run, name)))
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
    delta = None
    if encoding.carries_state:
        delta = random_tensor(1, tokens, model.num_kv_heads, encoding.state_width)
    inputs = (q, k, delta)
    initial = encoding.state(torch.arange(tokens, device=device)[None])
    state = PositionState(initial, delta)

    def run(by_kernel: bool) -> list[Tensor]:
        return _with_gradients(rotated_heads(q, k, state, encoding.moves_state, by_kernel), inputs)

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
    inputs = (delta, attended, m, *update.parameters())

    def run(by_kernel: bool) -> list[Tensor]:
        update.use_kernels(by_kernel)
        updated: PositionState = update(PositionState(initial, delta), attended, m)
        return _with_gradients((updated.delta,), inputs)

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


def _run_backend(name: str, requirements: AttentionRequirements, test: SmokeTest) -> list[Tensor]:
    """Return outputs and gradients of a backend.

    All backends get the same random inputs. A bias by distance stands in for every bias of pairs.
    """
    num_heads = test.num_heads
    tokens = test.tokens
    device = test.device
    random_tensor = _RandomTensors(device, requirements.dtype)
    query = random_tensor(1, tokens, num_heads, requirements.head_dim)
    key = random_tensor(1, tokens, 1, requirements.head_dim)
    value = random_tensor(1, tokens, 1, requirements.head_dim)

    document_starts = None
    if requirements.masked:
        # Two documents, the first one a little longer.
        document_length = tokens // 2 + 1
        index = torch.arange(tokens, device=device)
        document_starts = (index - index % document_length)[None]

    state_width = test.state_width or requirements.head_dim
    initial = random_tensor(1, tokens, 1, state_width, dtype=torch.float32).detach()
    delta = random_tensor(1, tokens, 1, test.state_width) if requirements.averages_state else None

    bias_weights = None
    bias: ScoreBias | None = None
    if requirements.bias == "decay":
        bias_weights = random_tensor(1, tokens, num_heads, 1, dtype=torch.float64)
        bias = Decay(bias_weights)
    elif requirements.bias != "none":
        bias_weights = random_tensor(num_heads, tokens, dtype=torch.float32)
        bias = DistanceBias(bias_weights)

    # A bias is tested without rotation, unless the state moves as well.
    state = PositionState(initial, delta) if requirements.averages_state or bias is None else None

    backend = get_backend(name, test.rotation_by_kernel, requirements.deterministic)
    outputs = backend.attend(query, key, value, state, bias, document_starts, requirements.averages_state)
    return _with_gradients(outputs, (query, key, value, delta, bias_weights))


def _with_gradients(outputs: Iterable[Tensor | None], inputs: Iterable[Tensor | None]) -> list[Tensor]:
    """Return the outputs, and the gradients of the sum of their squares with respect to the inputs, without None."""
    existing_outputs = [output for output in outputs if output is not None]
    existing_inputs = [tensor for tensor in inputs if tensor is not None]
    losses = [output.float().square().sum() for output in existing_outputs]
    gradients = torch.autograd.grad(losses, existing_inputs, allow_unused=True)
    return [tensor.detach() for tensor in (*existing_outputs, *gradients) if tensor is not None]


def _compare(run: Callable[[], list[Tensor]], run_reference: Callable[[], list[Tensor]]) -> str | None:
    """Return the error that a kernel raises or the difference of its results, or None if it works."""
    return _guarded(partial(_find_error, run, run_reference))


def _guarded(check: Callable[[], str | None]) -> str | None:
    """Return the result of a check, or the error it raises: an error on a single rank would leave the others waiting."""
    try:
        return check()
    except Exception as error:  # Kernels, compilers and drivers may raise anything.
        LOG.debug("raised in a smoke test:", exc_info=True)
        message = f"{type(error).__name__}: {error}"
        return message.strip().splitlines()[0]


def _find_error(run: Callable[[], list[Tensor]], run_reference: Callable[[], list[Tensor]]) -> str | None:
    """Return the reason why results differ too much from the reference, or None if they do not."""
    errors = []
    for actual, expected in zip(run(), run_reference(), strict=True):
        difference = actual.float() - expected.float()
        errors.append(difference.norm() / expected.float().norm())
    largest = float(torch.stack(errors).max())
    if not math.isfinite(largest):
        return "its results are not finite"
    if largest > MAX_RELATIVE_ERROR:
        return f"its results are off by {largest:.0%}"
    return None


def _find_difference(run: Callable[[], list[Tensor]]) -> str | None:
    """Run twice. Returns the reason why the results are not bit for bit the same, or None if they are."""
    for one, other in zip(run(), run(), strict=True):
        if not torch.equal(one, other):
            return "its results differ when it runs twice, which training.deterministic excludes"
    return None
