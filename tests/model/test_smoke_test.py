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
        content, attended_positions = super().attend(*arguments)
        return _NoBackward.apply(content) if attended_positions is None else content, attended_positions


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
        content, attended_positions = super().attend(*arguments)
        return content * float("nan"), attended_positions


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (WithoutBackward, WrongGradient, NotANumber):
        monkeypatch.setitem(BACKENDS, kind.__name__, Entry(f"{__name__}:{kind.__name__}", ""))


def tried(
    name: str,
    moves_state: bool = False,
    bias: BiasKind = "none",
    dtype: torch.dtype = torch.bfloat16,
    masked: bool = False,
    width: int = 16,
) -> str | None:
    requirements = AttentionRequirements("cpu", moves_state, bias, 16, dtype, masked)
    return smoke_test_backend(name, [requirements], BackendTrial(2, width, 40, CPU))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_smoke_test_accepts_working_backends(dtype: torch.dtype, masked: bool) -> None:
    assert not tried("sdpa", dtype=dtype, masked=masked)
    assert not tried("sdpa", True, dtype=dtype, masked=masked, width=32)  # a CPU can, for the price of N x N
    assert not tried("blocked", True, dtype=dtype, masked=masked)
    assert not tried("blocked", False, "distance", dtype, masked)
    assert not tried("blocked", True, "distance", dtype, masked)


def test_smoke_test_reports_failing_backends() -> None:
    assert tried("WithoutBackward") == "RuntimeError: no kernel for the backward pass"
    assert not tried("WithoutBackward", True)
    wrong = tried("WrongGradient", True)
    assert wrong is not None
    assert wrong.startswith("its results are off by 100%")
    assert tried("NotANumber") == "its results are off by nan%"
