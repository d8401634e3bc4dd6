"""A run whose folder cannot be reached, because a file server is away: it trains on, loses nothing that it had to write, and
ends only when it is known that another run has the folder, or when the last checkpoint cannot be written."""

import copy
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megatape.config import Config, parse_config
from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus, NotSaved
from megatape.reliability.lease import Lease, LeaseTimeouts, hold
from megatape.run_folder import RunFolder, read_metrics
from megatape.training import pretrain as pretrain_module
from megatape.training.pretrain import pretrain
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.steps.prefetch import Prefetcher
from megatape.utils import retries
from megatape.utils.json_lines import read_lines
from tests.helpers.processes.workers import Workers, run_workers
from tests.helpers.runs.run_data import open_run_data

TIMEOUTS = LeaseTimeouts(heartbeat_interval=10.0, expiry=90.0, poll_interval=0.02)
TARGET = "tests.end_to_end.test_folder_away:train_without_folder"


class Away:
    """Takes a run's folder away and brings it back. Meanwhile its path is a link to itself, which gives an OSError to every
    operation."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.aside = directory.with_name(f"{directory.name}.aside")

    def go(self, silence: float, lease: Lease) -> None:
        """silence: seconds since the last heartbeat, as the lease sees it."""
        self.directory.rename(self.aside)
        self.directory.symlink_to(self.directory)
        lease._renewed -= silence

    def come(self) -> None:
        self.directory.unlink()
        self.aside.rename(self.directory)


def train_without_folder(payload: dict[str, Any], topology: Topology) -> list[str]:
    """How each of {"config": base, "kinds": [...], "data": folder of a copy for the last kind} ends."""
    ends = []
    for kind in payload["kinds"]:
        print(f"case {kind}", flush=True)
        raw = copy.deepcopy(payload["config"])
        raw["run"]["directory"] = str(Path(raw["run"]["directory"]) / kind)
        if kind == "without data":
            raw["data"]["path"] = payload["data"]
        try:
            ends.append(f"unfinished: {_train(kind, parse_config(raw, kind), topology)}")
        except (ValueError, OSError) as error:
            ends.append(f"{type(error).__name__}: {error}")
    return ends


def _train(kind: str, config: Config, topology: Topology) -> bool:
    folder = RunFolder(Path(config.run.directory))
    away = Away(folder.directory)
    actions = _actions(kind, away, Path(config.data.path))
    start = Prefetcher.start
    wait = Lease.wait

    def disturbed(self: Prefetcher, consumed: int) -> None:
        made = consumed // 8 - 1  # called in the step before
        if made in actions and topology.is_main:
            actions.pop(made)(lease)
        start(self, consumed)

    def waited(self: Lease, requested: Callable[[], bool], warn: Callable[[str], object]) -> None:
        def end_wait(line: str) -> None:
            warn(line)
            _end_wait(kind, away, folder)

        wait(self, requested, end_wait)

    with (
        patch.object(Prefetcher, "start", disturbed),
        patch.object(Lease, "wait", waited),
        patch.object(retries, "WAITS", (0.01, 0.02)),
        hold(folder.lease, topology, TIMEOUTS) as lease,
    ):
        return build_trainer(config, open_run_data(config), topology, lease).train()


def _actions(kind: str, away: Away, data: Path) -> dict[int, Callable[[Lease], None]]:
    """What happens in the step after so many steps."""

    def remove_data(lease: Lease) -> None:
        away.go(25, lease)
        shutil.rmtree(data)

    if kind == "undisturbed":
        return {}
    if kind == "short":
        return {3: lambda lease: away.go(25, lease), 7: lambda lease: away.come()}
    if kind == "without data":
        return {3: remove_data}
    return {3: lambda lease: away.go(3600, lease)}


def _end_wait(kind: str, away: Away, folder: RunFolder) -> None:
    """Ends training's wait, once it has begun: a timer may go off before, while a step is still being made."""
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGTERM)
        return
    if kind == "taken over":
        lease = away.aside / folder.lease.name
        lease.write_text(json.dumps(json.loads(lease.read_text()) | {"nonce": "another"}))
    away.come()


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_training_continues_without_its_folder(
    raw_config: dict[str, Any], data_directory: Path, tmp_path: Path, world_size: int
) -> None:
    """Short: shorter than after which another run may take over. Long: training waits, until the folder is back, is another
    run's, or somebody asks for the end. Without data: the last save fails as well, so that the run is to be started again."""
    raw_config["training"]["steps"] = 10
    raw_config["checkpoint"] = {"interval": 2, "keep": 10}
    raw_config["evaluation"]["interval"] = 5
    data = shutil.copytree(data_directory, tmp_path / "data")
    kinds = ["undisturbed", "short", "long", "stopped", "without data"]
    kinds += ["taken over"] if world_size == 1 else []  # without a watch the other rank would wait for ever
    payload = {"config": raw_config, "kinds": kinds, "data": str(data)}
    ends = run_workers(TARGET, world_size, payload, tmp_path / "workers", timeout=90)
    assert ends == ends[:1] * world_size
    end = dict(zip(kinds, ends[0], strict=True))
    said = {part.split("\n")[0]: part for part in (tmp_path / "workers" / "rank0.log").read_text().split("case ")[1:]}
    root = Path(raw_config["run"]["directory"])
    runs = {kind: RunFolder(root / kind) for kind in kinds}

    saved = {"undisturbed": [2, 4, 6, 8, 10], "short": [2, 8, 10], "long": [2, 4, 6, 8, 10]}
    for kind, steps in saved.items():
        assert end[kind] == "unfinished: False"
        assert list(read_metrics(runs[kind].metrics)) == list(range(1, 11)), kind
        assert [int(path.name[-8:]) for path in reversed(runs[kind].list_checkpoints())] == steps
        events = [(entry["event"], entry["step"]) for _, entry in read_lines(runs[kind].events)]
        assert events == [("started", 0), *(("checkpoint", step) for step in steps), ("finished", 10)], kind
        assert _views(runs[kind]) == _views(runs["undisturbed"]) and len(_views(runs[kind])) == 2
        assert _losses(runs[kind]) == _losses(runs["undisturbed"])
    assert said["short"].count("the save after step") == 2 and "the save after step 4 waits" in said["short"]
    assert "training waits until it answers" not in said["short"]
    assert said["long"].count("another run may have taken it over: training waits until it answers") == 1

    assert end["stopped"].startswith("NotSaved: checkpoint ") and "steps 3 to 4 are not saved" in end["stopped"]
    assert end["without data"].startswith("NotSaved: the validation data after step 5 cannot be read")
    assert "steps 3 to 5 are not saved" in end["without data"]

    if "taken over" in kinds:
        assert end["taken over"].startswith("LeaseLost") and "was taken over by process" in end["taken over"]
        assert list(read_metrics(runs["taken over"].metrics)) == [1, 2, 3], "nothing was written any more"
        assert [entry["event"] for _, entry in read_lines(runs["taken over"].events)] == ["started", "checkpoint"]


def _views(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.list_position_views().values()}


def _losses(folder: RunFolder) -> list[float]:
    return [json.loads(line)["loss"] for line in read_metrics(folder.metrics).values()]


def test_status_of_a_run_that_is_not_saved(
    raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise NotSaved("checkpoint step-4 could not be written")

    monkeypatch.setattr(pretrain_module, "initialize_distributed", lambda *_: None)
    monkeypatch.setattr(pretrain_module, "shut_down", lambda: None)
    monkeypatch.setattr(pretrain_module, "open_together", fail)
    assert pretrain(parse_config(raw_config, "test")) == ExitStatus.NOT_SAVED
    assert capfd.readouterr().err == "error: checkpoint step-4 could not be written\n"


@pytest.mark.slow
def test_a_full_disk_at_the_end(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The command on two ranks, whose files cannot grow when SIGTERM comes: saved when there is room again, or not saved and
    to be started again. Either way no step is missing after the next start."""
    raw_config["training"]["steps"] = 1000
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))
    words = ["pretrain", "--config", str(path), "--resume", "auto", "--set", "checkpoint.interval=1000"]
    folder = RunFolder(Path(raw_config["run"]["directory"]))
    begun = 0
    for number, status in enumerate((ExitStatus.UNFINISHED, ExitStatus.NOT_SAVED)):
        with Workers(words, 2, tmp_path / f"start{number}") as workers:
            workers.wait(_passed(folder, begun), "a step", 90)
            _limit_files(workers, 100_000)  # bytes: less than the tensors of a checkpoint, more than logs
            workers.signal(signal.SIGTERM)
            workers.wait(lambda: "trying again in 2 s" in workers.logs() or not workers.running(), "a failed attempt", 90)
            if status == ExitStatus.UNFINISHED:
                _limit_files(workers, resource.RLIM_INFINITY)
            assert workers.statuses() == [status] * 2, workers.logs()
        begun = max(read_metrics(folder.metrics))
    saved = [int(path.name[-8:]) for path in folder.list_checkpoints()]
    assert len(saved) == 1, "of the first start"
    with Workers([*words, "--set", f"training.steps={saved[0] + 4}"], 2, tmp_path / "last") as workers:
        assert workers.statuses() == [0, 0], workers.logs()
    assert list(read_metrics(folder.metrics)) == list(range(1, saved[0] + 5))


def _passed(folder: RunFolder, step: int) -> Callable[[], bool]:
    return lambda: max(read_metrics(folder.metrics), default=0) > step


def _limit_files(workers: Workers, size: int) -> None:
    """Let no file of the ranks grow beyond this size in bytes."""
    for rank in workers.ranks:
        pid = int((workers.folder / f"rank{rank}.pid").read_text())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
