"""Smoke tests accept working attention backends, and return errors for others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.backend import AttentionRequirements, BiasKind
from megatape.attention.backends.blocked import Blocked
from megatape.model.smoke_test import SmokeTest, smoke_test_backend
from megatape.registry import BACKENDS, Entry

CPU = torch.device("cpu")
Outputs = tuple[Tensor, Tensor | None]


class WithoutBackward(Blocked):
    """Backend failing in the backward pass without a state."""

    def attend(self, *arguments: Any) -> Outputs:
        content, attended_state = super().attend(*arguments)
        if attended_state is None:
            content = _NoBackward.apply(content)
        return content, attended_state


class _NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise RuntimeError("no kernel for the backward pass\nand a long stack")


class WrongGradient(Blocked):
    """Backend with correct outputs and wrong gradients."""

    def attend(self, q: Tensor, *arguments: Any) -> Outputs:
        return super().attend(2 * q - q.detach(), *arguments)


class NotANumber(Blocked):
    def attend(self, *arguments: Any) -> Outputs:
        content, attended_state = super().attend(*arguments)
        return content * float("nan"), attended_state


class FailsWhenRepeated(Blocked):
    """Backend that works once and then fails, as if the device had run out of memory."""

    num_calls = 0

    def attend(self, *arguments: Any) -> Outputs:
        FailsWhenRepeated.num_calls += 1
        if FailsWhenRepeated.num_calls > 1:
            raise RuntimeError("out of memory")
        return super().attend(*arguments)


class Drifting(Blocked):
    """Backend rounding differently each time, as atomic additions do."""

    num_calls = 0

    def attend(self, *arguments: Any) -> Outputs:
        content, attended_state = super().attend(*arguments)
        Drifting.num_calls += 1
        return content * (1 + 2**-6 * Drifting.num_calls), attended_state


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (WithoutBackward, WrongGradient, NotANumber, FailsWhenRepeated, Drifting):
        monkeypatch.setitem(BACKENDS, kind.__name__, Entry(f"{__name__}:{kind.__name__}", ""))


def reason_of(
    backend: str,
    averages_state: bool = False,
    bias: BiasKind = "none",
    dtype: torch.dtype = torch.bfloat16,
    masked: bool = False,
    width: int = 16,
) -> str | None:
    requirements = AttentionRequirements("cpu", averages_state, bias, 16, dtype, masked)
    return smoke_test_backend(backend, [requirements], SmokeTest(2, width, 40, CPU))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_smoke_test_accepts_working_backends(dtype: torch.dtype, masked: bool) -> None:
    assert reason_of("sdpa", dtype=dtype, masked=masked) is None
    assert reason_of("sdpa", True, dtype=dtype, masked=masked, width=32) is None  # A CPU can, by computing N x N scores.
    assert reason_of("blocked", True, dtype=dtype, masked=masked) is None
    assert reason_of("blocked", False, "distance", dtype, masked) is None
    assert reason_of("blocked", True, "distance", dtype, masked) is None
    assert reason_of("blocked", True, "decay", dtype, masked) is None


def test_a_failing_backward_pass_is_reported() -> None:
    assert reason_of("WithoutBackward") == "RuntimeError: no kernel for the backward pass"
    assert reason_of("WithoutBackward", averages_state=True) is None


def test_wrong_gradients_are_reported() -> None:
    reason = reason_of("WrongGradient", averages_state=True)
    assert reason is not None
    assert reason.startswith("its results are off by 100%")


def test_nan_is_reported() -> None:
    assert reason_of("NotANumber") == "its results are not finite"


def test_results_that_differ_each_time_are_reported_if_they_must_repeat() -> None:
    requirements = AttentionRequirements("cpu", False, "none", 16, torch.bfloat16, masked=False)
    test = SmokeTest(2, 16, 40, CPU)
    assert smoke_test_backend("Drifting", [requirements], test) is None
    deterministic = replace(requirements, deterministic=True)
    assert smoke_test_backend("blocked", [deterministic], test) is None
    reason = smoke_test_backend("Drifting", [deterministic], test)
    assert reason == "its results differ when it runs twice, which training.deterministic excludes"


def test_an_error_while_repeating_is_reported() -> None:
    """An error while repeating is returned, not raised: raising it would end one rank, and the others would wait for it."""
    requirements = AttentionRequirements("cpu", False, "none", 16, torch.bfloat16, masked=False, deterministic=True)
    reason = smoke_test_backend("FailsWhenRepeated", [requirements], SmokeTest(2, 16, 40, CPU))
    assert reason == "RuntimeError: out of memory"
