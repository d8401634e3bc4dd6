"""Exit status and message for every way of ending (docs/faults.md)."""

import errno
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError
from torch.distributed import DistNetworkError

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import DataError, ExitStatus, LeaseLost, NotSaved, TrainingDiverged, UserError
from megatape.reliability.watch.rank_errors import RankFailed
from megatape.training import pretrain

EIO = OSError(errno.EIO, "Input/output error", "run/metrics.jsonl")
# Case -> error or result of training, and the exit status
IN_TRAINING: dict[str, tuple[Any, ExitStatus]] = {
    "all steps are made": ([False], ExitStatus.DONE),
    "a scheduler asked for the end": ([True], ExitStatus.UNFINISHED),
    "a user asked for the end before the first step": ([False], ExitStatus.INTERRUPTED),
    "a scheduler asked for the end before the first step": ([True], ExitStatus.UNFINISHED),
    "the last checkpoint is not saved": (NotSaved("no space"), ExitStatus.NOT_SAVED),
    "the loss is not finite": (TrainingDiverged("diverged"), ExitStatus.DIVERGED),
    "another rank died": (RankFailed("rank 1 died"), ExitStatus.DIED),
    "another rank has shown an error of the user's": (RankFailed("rank 1 failed", 2), ExitStatus.USER_ERROR),
    "data cannot be read": (DataError("shard not found"), ExitStatus.DIED),
    "another run took over": (LeaseLost("taken over"), ExitStatus.USER_ERROR),
    "an error of the user's": (UserError("the base was removed"), ExitStatus.USER_ERROR),
}
BEFORE_TRAINING: dict[str, tuple[str, Exception]] = {
    "a folder cannot be written": ("start", EIO),
    "data do not fit": ("start", UserError("other data")),
    "no port": ("meet", DistNetworkError("in use")),
}
# Program or machine errors, for which the user only sees the traceback
DEATHS = {
    "a disk fails": EIO,
    "an error of ours": ValueError("not enough values to unpack"),
    "a file is truncated": SafetensorError("header too small"),
    "the network fails": DistNetworkError("reset"),
}


def end(raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **ends: Any) -> ExitStatus:
    """Start training with stand-ins for all its parts.

    Args:
        raw_config: Configuration.
        monkeypatch: Fixture for replacing the parts.
        ends: Errors to raise, or results to return in turn, by part.
    """
    stubs: dict[str, Any] = {"set_up_ranks": lambda: Topology(0, 1, 0), "hold": lambda *_: nullcontext()}
    for name in ("open_together", "shut_down"):
        stubs[name] = Mock()
    stubs["initialize_distributed"] = Mock(side_effect=ends.get("meet"))
    trainer = Mock(train=Mock(side_effect=ends.get("train")), progress=Mock(step=ends.get("step", 1)))
    stubs["build_trainer"] = Mock(return_value=trainer, side_effect=ends.get("start"))
    for name, stub in stubs.items():
        monkeypatch.setattr(pretrain, name, stub)
    return pretrain.pretrain(parse_config(raw_config, "test"))


@pytest.mark.parametrize("name", IN_TRAINING)
def test_exit_statuses_in_training(
    raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    outcome, status = IN_TRAINING[name]
    step = 1
    if "before the first" in name:
        step = 0
    assert end(raw_config, monkeypatch, train=outcome, step=step) is status
    errors = capfd.readouterr().err
    if isinstance(outcome, RankFailed):
        # The other rank has printed the user's error.
        expected = ""
        if outcome.status != ExitStatus.USER_ERROR:
            expected = f"error on rank 0: {outcome}\n"
        assert errors == expected
    elif isinstance(outcome, Exception):
        assert errors == f"error: {outcome}\n"


@pytest.mark.parametrize("name", BEFORE_TRAINING)
def test_exit_statuses_before_training(
    raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """An invalid path, data folder or port is one line."""
    part, error = BEFORE_TRAINING[name]
    assert end(raw_config, monkeypatch, **{part: error}) is ExitStatus.USER_ERROR
    errors = capfd.readouterr().err
    assert str(error) in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("name", DEATHS)
def test_unexpected_errors_keep_their_traceback(raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(type(DEATHS[name])) as met:
        end(raw_config, monkeypatch, train=DEATHS[name])
    assert met.value is DEATHS[name]
