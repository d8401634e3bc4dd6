"""The exit status of each way in which training ends (docs/training.md), and what is told of it."""

import errno
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError
from torch.distributed import DistNetworkError

from megatape.config import parse_config
from megatape.errors import DataError, ExitStatus, LeaseLost, NotSaved, TrainingDiverged, UserError
from megatape.runtime.topology import Topology
from megatape.runtime.watch import RankFailed
from megatape.training import pretrain

EIO = OSError(errno.EIO, "Input/output error", "run/metrics.jsonl")
# What training raises or returns -> the status, and whether a traceback is shown.
IN_TRAINING: dict[str, tuple[Any, ExitStatus, bool]] = {
    "all steps are made": ([False], ExitStatus.DONE, False),
    "a scheduler asked for the end": ([True], ExitStatus.UNFINISHED, False),
    "a disk fails": (EIO, ExitStatus.DIED, True),
    "the last checkpoint is not saved": (NotSaved("no space"), ExitStatus.NOT_SAVED, False),
    "the loss is not finite": (TrainingDiverged("diverged"), ExitStatus.DIVERGED, False),
    "another rank died": (RankFailed("rank 1 died"), ExitStatus.DIED, False),
    "data cannot be read": (DataError("shard not found"), ExitStatus.DIED, False),
    "another run took over": (LeaseLost("taken over"), ExitStatus.USER_ERROR, False),
    "an error of the user's": (UserError("the base was removed"), ExitStatus.USER_ERROR, False),
    "an error of ours": (ValueError("not enough values to unpack"), ExitStatus.DIED, True),
    "a file is truncated": (SafetensorError("header too small"), ExitStatus.DIED, True),
}
BEFORE_TRAINING = {
    "a folder cannot be written": EIO,
    "data do not fit": ValueError("other data"),
    "no port": DistNetworkError("in use"),
}


def end(raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **ends: Any) -> ExitStatus:
    """Start training, of which everything is a stand-in. ends: what these functions raise, or return in turn."""
    stubs: dict[str, Any] = {"discover": lambda: Topology(0, 1, 0), "hold": lambda *_: nullcontext()}
    for name in ("initialize_distributed", "open_together", "introduction", "shut_down"):
        stubs[name] = Mock()
    trainer = Mock(train=Mock(side_effect=ends.get("train")))
    stubs["Trainer"] = Mock(return_value=trainer, side_effect=ends.get("start"))
    for name, stub in stubs.items():
        monkeypatch.setattr(pretrain, name, stub)
    return pretrain.pretrain(parse_config(raw_config, "test"))


@pytest.mark.parametrize("name", IN_TRAINING)
def test_in_training(
    raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    outcome, status, traceback = IN_TRAINING[name]
    assert end(raw_config, monkeypatch, train=outcome) is status
    errors = capfd.readouterr().err
    assert ("Traceback" in errors) == traceback
    if isinstance(outcome, Exception):
        assert str(outcome) in errors and (traceback or errors == f"error: {outcome}\n")


@pytest.mark.parametrize("name", BEFORE_TRAINING)
def test_before_training(
    raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """A path, data or port of the user's: one line."""
    assert end(raw_config, monkeypatch, start=BEFORE_TRAINING[name]) is ExitStatus.USER_ERROR
    errors = capfd.readouterr().err
    assert str(BEFORE_TRAINING[name]) in errors and errors.count("\n") == 1


def test_a_network_that_fails_in_training_is_a_death(raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DistNetworkError):
        end(raw_config, monkeypatch, train=DistNetworkError("reset"))
