"""Smoke tests accept working attention backends, and return the errors of others."""

from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.backend import AttentionRequirements, BiasKind
from megatape.attention.backends.blocked import Blocked
from megatape.model.smoke_test import BackendTrial, smoke_test_backend
from megatape.registry import BACKENDS, Entry

CPU = torch.device("cpu")
Outputs = tuple[Tensor, Tensor | None]


class WithoutBackward(Blocked):
    """Backend whose backward pass fails if there is no state."""

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


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (WithoutBackward, WrongGradient, NotANumber):
        monkeypatch.setitem(BACKENDS, kind.__name__, Entry(f"{__name__}:{kind.__name__}", ""))


def reason_of(
    backend: str,
    moves_state: bool = False,
    bias: BiasKind = "none",
    dtype: torch.dtype = torch.bfloat16,
    masked: bool = False,
    width: int = 16,
) -> str | None:
    requirements = AttentionRequirements("cpu", moves_state, bias, 16, dtype, masked)
    return smoke_test_backend(backend, [requirements], BackendTrial(2, width, 40, CPU))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_smoke_test_accepts_working_backends(dtype: torch.dtype, masked: bool) -> None:
    assert reason_of("sdpa", dtype=dtype, masked=masked) is None
    assert reason_of("sdpa", True, dtype=dtype, masked=masked, width=32) is None  # a CPU can, for the price of N x N
    assert reason_of("blocked", True, dtype=dtype, masked=masked) is None
    assert reason_of("blocked", False, "distance", dtype, masked) is None
    assert reason_of("blocked", True, "distance", dtype, masked) is None


def test_a_failing_backward_pass_is_reported() -> None:
    assert reason_of("WithoutBackward") == "RuntimeError: no kernel for the backward pass"
    assert reason_of("WithoutBackward", moves_state=True) is None


def test_wrong_gradients_are_reported() -> None:
    reason = reason_of("WrongGradient", moves_state=True)
    assert reason is not None
    assert reason.startswith("its results are off by 100%")


def test_nan_is_reported() -> None:
    assert reason_of("NotANumber") == "its results are off by nan%"
