"""One forward and backward pass tells whether a backend of attention works."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.backend import AttentionRequirements, BiasKind
from megatape.attention.backends.blocked import Blocked
from megatape.imports import import_given
from megatape.model.smoke_test import backend_failure, failure_in_child
from megatape.registry import BACKENDS, Entry

CPU = torch.device("cpu")
Outputs = tuple[Tensor, Tensor | None]


class WithoutBackward(Blocked):
    """Its forward pass works; without a state it has no other."""

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
    """Its outputs are right."""

    def attend(self, q: Tensor, *arguments: Any) -> Outputs:
        return super().attend(2 * q - q.detach(), *arguments)


class NotANumber(Blocked):
    def attend(self, *arguments: Any) -> Outputs:
        content, attended_positions = super().attend(*arguments)
        return content * float("nan"), attended_positions


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for kind in (WithoutBackward, WrongGradient, NotANumber):
        monkeypatch.setitem(BACKENDS, kind.__name__, Entry(f"{__name__}:{kind.__name__}", ""))
    yield
    get_backend.cache_clear()


def tried(
    name: str,
    moves: bool = False,
    bias: BiasKind = "none",
    dtype: torch.dtype = torch.bfloat16,
    masked: bool = False,
    width: int = 16,
) -> str:
    return backend_failure(name, [AttentionRequirements("cpu", moves, bias, 16, dtype, masked)], 2, width, 40, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_what_works(dtype: torch.dtype, masked: bool) -> None:
    assert not tried("sdpa", dtype=dtype, masked=masked)
    assert not tried("sdpa", True, dtype=dtype, masked=masked, width=32)  # a CPU can, for the price of N x N
    assert not tried("blocked", True, dtype=dtype, masked=masked)
    assert not tried("blocked", False, "distance", dtype, masked)
    assert not tried("blocked", True, "distance", dtype, masked)


def test_what_fails() -> None:
    assert tried("WithoutBackward") == "RuntimeError: no kernel for the backward pass"
    assert not tried("WithoutBackward", True)
    assert tried("WrongGradient", True).startswith("its results are off by 100%")
    assert tried("NotANumber") == "its results are off by nan%"


def test_a_crash_is_left_to_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that asks lives on, also where a user's own module brings the backend."""
    monkeypatch.setitem(BACKENDS, "crashing", BACKENDS["blocked"])  # removed after the test
    monkeypatch.setattr("megatape.imports._given", {})
    import_given("tests.helpers.crashing_backend")
    need = AttentionRequirements("cpu", False, "none", 16, torch.float32, masked=False)
    assert failure_in_child("crashing", [need], 2, 16, 40, CPU) == f"its process ended with status {-signal.SIGABRT}"
    assert failure_in_child("sdpa", [need], 2, 16, 40, CPU) == ""
