"""Forward and backward pass of a micro-batch, recorded once and replayed.

Only the module's own operations are recorded, and DeepSpeed handles gradients as always: a replay passes each gradient to
autograd, whose hooks accumulate, reduce and shard it. The gradients arrive in the order in which the module's backward pass
computes them, so that buckets have the same contents as without replays, and sums over ranks the same bits.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd import Function

from megatape.utils.pytorch.recorder import WARM_UP_RUNS, Recorder, refill, stable_copy
from megatape.utils.pytorch.torch_internals import has_gradient_hooks

# Keyword arguments for the module's forward pass on one micro-batch, on this rank's device.
Inputs = dict[str, Tensor | None]

# The input that the check of the replays changes.
TOKENS = "tokens"

# Largest relative difference between the loss or a gradient norm of a replay and of the same passes without recording, and as
# a share of the largest norm. Both leave room for kernels that add in another order each time.
TOLERANCE = 0.01
TOLERANCE_OF_SMALL_NORMS = 0.001


class RecordedPasses:
    """Passes of a module on micro-batches shaped like the first one.

    Args:
        forward: Forward pass of the module. Returns a float32 scalar, the loss.
        parameters: Trained parameters of the module.
        recorder: Records the passes.
        inputs: The first micro-batch.

    Raises:
        RuntimeError: The passes cannot be recorded, or their replays compute something else.
    """

    def __init__(
        self,
        forward: Callable[..., Tensor],
        parameters: Sequence[nn.Parameter],
        recorder: Recorder,
        inputs: Inputs,
    ) -> None:
        if any(has_gradient_hooks(parameter) for parameter in parameters):
            raise RuntimeError("a weight has a hook, which would be called within the recorded pass and after it")
        device = parameters[0].device
        self._forward = forward
        self._parameters = list(parameters)
        self._layout = layout_of(inputs)
        # Memory that recorded operations read and write.
        self._inputs: Inputs = {}
        for name, tensor in inputs.items():
            self._inputs[name] = None if tensor is None else stable_copy(tensor, device)
        self._loss = torch.zeros((), device=device)
        self._loss_gradient = torch.ones((), device=device)
        self._gradients: dict[int, Tensor] = {}

        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            self._record(recorder, inputs)

    def _record(self, recorder: Recorder, inputs: Inputs) -> None:
        """Warm up, record both passes, and check their replays on two micro-batches."""
        other_inputs = inputs | {TOKENS: _other_tokens(inputs)}
        run = partial(recorder.warm_up, self._run)
        for _ in range(WARM_UP_RUNS - 2):
            run()
        expected = self._sums(run, inputs)
        with _ArrivalOrder(self._parameters) as arrival:
            expected_of_others = self._sums(run, other_inputs)
        # Otherwise their memory would be in use beside that of the recorded passes.
        self._gradients.clear()

        self._replay_forward = recorder.record(self._run_forward)
        self._replay_backward = recorder.record(self._run_backward)
        # The backward pass runs a chain of autograd nodes from its last node to its first.
        self._in_chain_order = arrival.indices[::-1]
        for micro_batch, sums in ((inputs, expected), (other_inputs, expected_of_others)):
            _check_sums(self._sums(self._replay, micro_batch), sums)

    def fits(self, inputs: Inputs) -> bool:
        """Whether the passes can be replayed with a micro-batch: its tensors have the layout of the first one's."""
        return layout_of(inputs) == self._layout

    def forward(self, inputs: Inputs) -> Tensor:
        """Replay the forward pass. Differentiating the result replays the backward pass."""
        self._hold(inputs)
        # The GPU computes while the host makes the chain.
        self._replay_forward()
        loss = self._loss.clone()
        node = loss
        for index in self._in_chain_order:
            node = _Gradient.apply(node, self._parameters[index], self._gradients[index])
        return _Loss.apply(node, loss, self)  # type: ignore[no-any-return]

    def replay_backward(self, loss_gradient: Tensor) -> None:
        """Replay the backward pass of the last forward pass."""
        self._loss_gradient.copy_(loss_gradient)
        self._replay_backward()

    def _hold(self, inputs: Inputs) -> None:
        for name, tensor in inputs.items():
            held = self._inputs[name]
            if tensor is not None and held is not None:
                refill(held, tensor)

    def _run(self) -> None:
        self._run_forward()
        self._run_backward()

    def _replay(self) -> None:
        self._replay_forward()
        self._replay_backward()

    def _run_forward(self) -> None:
        self._loss = self._forward(**self._inputs)

    def _run_backward(self) -> None:
        self._gradients.clear()
        # Not `backward`, which would run DeepSpeed's hooks.
        gradients = torch.autograd.grad(self._loss, self._parameters, self._loss_gradient, allow_unused=True)
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                self._gradients[index] = gradient
        self._loss = self._loss.detach()

    def _sums(self, passes: Callable[[], None], inputs: Inputs) -> list[float]:
        """Run or replay both passes with the same random numbers. Returns the loss and the norms of the gradients."""
        self._hold(inputs)
        torch.manual_seed(0)
        passes()
        norms = [gradient.float().norm() for gradient in self._gradients.values()]
        return torch.stack([self._loss, *norms]).tolist()  # type: ignore[no-any-return]


class _Loss(Function):
    """Loss of a replayed forward pass, last node of the chain: its backward pass computes all gradients."""

    @staticmethod
    def forward(ctx: Any, node: Tensor, loss: Tensor, passes: RecordedPasses) -> Tensor:
        ctx.passes = passes
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.passes.replay_backward(loss_gradient)
        return loss_gradient, None, None


class _Gradient(Function):
    """Node that passes a gradient on to its parameter. Autograd accumulates it before the next node of the chain runs."""

    @staticmethod
    def forward(ctx: Any, node: Tensor, parameter: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return node.view_as(node)

    @staticmethod
    def backward(ctx: Any, node_gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        # Autograd copies the gradient, which is still referred to here, before anyone can change it.
        return node_gradient, ctx.gradient, None


class _ArrivalOrder:
    """Notes the order in which a backward pass computes the gradients of parameters. Context manager.

    Attributes:
        indices: Indices of the parameters that have a gradient.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._hooks: list[Any] = []
        self.indices: list[int] = []

    def __enter__(self) -> Self:
        for index, parameter in enumerate(self._parameters):
            self._hooks.append(parameter.register_hook(partial(self._note, index)))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note(self, index: int, gradient: Tensor) -> None:
        self.indices.append(index)


def layout_of(inputs: Inputs) -> dict[str, tuple[torch.Size, tuple[int, ...]] | None]:
    """Return shape and strides of each input."""
    layout: dict[str, tuple[torch.Size, tuple[int, ...]] | None] = {}
    for name, tensor in inputs.items():
        layout[name] = None if tensor is None else (tensor.shape, tensor.stride())
    return layout


def _other_tokens(inputs: Inputs) -> Tensor:
    """Return the tokens of a micro-batch in another order."""
    tokens = inputs[TOKENS]
    assert tokens is not None
    return tokens.roll(1, -1)


def _check_sums(replayed: list[float], expected: list[float]) -> None:
    """Raise a RuntimeError if a loss and gradient norms differ from the expected ones, beyond rounding."""
    loss, *norms = replayed
    expected_loss, *expected_norms = expected
    if not _is_close(loss, expected_loss, 0.0):
        raise RuntimeError(f"the loss of a replay is {loss:.6g} instead of {expected_loss:.6g}")
    negligible = TOLERANCE_OF_SMALL_NORMS * max(expected_norms)
    for norm, expected_norm in zip(norms, expected_norms, strict=True):
        if not _is_close(norm, expected_norm, negligible):
            raise RuntimeError(f"a gradient of a replay has norm {norm:.6g} instead of {expected_norm:.6g}")


def _is_close(value: float, expected: float, negligible: float) -> bool:
    if math.isnan(expected):
        return math.isnan(value)
    return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=negligible)
