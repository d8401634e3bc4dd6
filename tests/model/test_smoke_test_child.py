"""A backend crashing in its smoke test only ends a child process."""

import signal

import pytest
import torch

from megatape.attention.backend import AttentionRequirements
from megatape.imports import import_given
from megatape.model.smoke_test import SmokeTest
from megatape.model.smoke_test_child import smoke_test_in_child
from megatape.registry import BACKENDS

CPU = torch.device("cpu")


def test_a_crash_is_left_to_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process running the test survives, even if a user's module registers the backend."""
    monkeypatch.setitem(BACKENDS, "crashing", BACKENDS["blocked"])  # removed after the test
    monkeypatch.setattr("megatape.imports._spelling_by_name", {})
    import_given("tests.helpers.models.crashing_backend")
    need = AttentionRequirements("cpu", False, "none", 16, torch.float32, masked=False)
    test = SmokeTest(2, 16, 40, CPU)
    assert smoke_test_in_child("crashing", [need], test) == f"its process ended with status {-signal.SIGABRT}"
    assert smoke_test_in_child("sdpa", [need], test) is None
