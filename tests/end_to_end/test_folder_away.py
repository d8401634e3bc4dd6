"""A run whose directory cannot be reached, because a file server is away.

The run continues, and later writes everything. It ends only if another run takes over the directory, or if the last checkpoint
cannot be written.
"""

import copy
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from megatape.config import Config, parse_config
from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus, NotSaved
from megatape.reliability.lease import Lease, LeaseTimeouts, hold
from megatape.run_folder import RunFolder, read_metrics, read_steps
from megatape.training import pretrain as pretrain_module
from megatape.training.pretrain import pretrain
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.steps.prefetch import Prefetcher
from megatape.utils.files import retries
from tests.helpers.processes.workers import Workers, run_workers
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.run_folders import read_entries, saved_steps
from tests.helpers.runs.small_run import small_config

TIMEOUTS = LeaseTimeouts(heartbeat_interval=10.0, expiry=90.0, poll_interval=0.02)
TARGET = "tests.end_to_end.test_folder_away:train_without_folder"


class Away:
    """Takes a run directory away and brings it back. Meanwhile its path is a link to itself: every operation raises OSError."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.aside = directory.with_name(f"{directory.name}.aside")

    def go(self, silence: float, lease: Lease) -> None:
        """Take the folder away. The lease sees its last heartbeat `silence` seconds ago."""
        self.directory.rename(self.aside)
        self.directory.symlink_to(self.directory)
        lease._renewed -= silence

    def come(self) -> None:
        """Bring the folder back."""
        self.directory.unlink()
        self.aside.rename(self.directory)


def train_without_folder(payload: dict[str, Any], topology: Topology) -> list[str]:
    """Train {"config": base, "kinds": [...], "data": folder for the kind "without data"}. Returns how each kind ends."""
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

    def start_after_action(prefetcher: Prefetcher, consumed: int) -> None:
        num_steps = consumed // 8 - 1  # called in the step before
        if topology.is_main and num_steps in actions:
            act = actions.pop(num_steps)
            act(lease)
        start(prefetcher, consumed)

    def wait_until_ended(lease: Lease, requested: Callable[[], bool], warn: Callable[[str], object]) -> None:
        def warn_and_end(line: str) -> None:
            warn(line)
            _end_wait(kind, away, folder)

        wait(lease, requested, warn_and_end)

    with (
        patch.object(Prefetcher, "start", start_after_action),
        patch.object(Lease, "wait", wait_until_ended),
        patch.object(retries, "WAITS", (0.01, 0.02)),
        hold(folder.lease, topology, TIMEOUTS) as lease,
    ):
        return build_trainer(config, open_run_data(config), topology, lease).train()


def _actions(kind: str, away: Away, data: Path) -> dict[int, Callable[[Lease], None]]:
    """Return what happens on the main rank: number of finished steps -> action during the next step."""

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
    """End training's wait after it has started. A timer could go off before, during a step."""
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGTERM)
        return
    if kind == "taken over":
        lease = away.aside / folder.lease.name
        lease.write_text(json.dumps(json.loads(lease.read_text()) | {"nonce": "another"}))
    away.come()


class Results(NamedTuple):
    """Run each kind. Returns folders, ends and outputs."""

    folders: dict[str, RunFolder]
    ends: dict[str, str]
    outputs: dict[str, str]


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["one rank", "two ranks"])
def results(request: pytest.FixtureRequest, data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    num_ranks = request.param
    root = tmp_path_factory.mktemp("away")
    config = small_config(data_directory, root / "run")
    config["training"]["steps"] = 10
    config["checkpoint"] = {"interval": 2, "keep": 10}
    config["evaluation"]["interval"] = 5
    data = shutil.copytree(data_directory, root / "data")
    kinds = ["undisturbed", "short", "long", "stopped", "without data"]
    if num_ranks == 1:
        # Without a watch, the other rank would wait forever.
        kinds.append("taken over")
    payload = {"config": config, "kinds": kinds, "data": str(data)}
    ends_by_rank = run_workers(TARGET, num_ranks, payload, root / "workers", timeout=90)
    for ends in ends_by_rank:
        assert ends == ends_by_rank[0]
    log = (root / "workers" / "rank0.log").read_text()
    outputs = {}
    for part in log.split("case ")[1:]:
        kind, _, output = part.partition("\n")
        outputs[kind] = output
    folders = {kind: RunFolder(root / "run" / kind) for kind in kinds}
    return Results(folders, dict(zip(kinds, ends_by_rank[0], strict=True)), outputs)


@pytest.mark.parametrize(
    ("kind", "expected_steps"),
    [
        ("undisturbed", [2, 4, 6, 8, 10]),
        ("short", [2, 8, 10]),
        ("long", [2, 4, 6, 8, 10]),
    ],
)
def test_training_continues_without_its_folder(results: Results, kind: str, expected_steps: list[int]) -> None:
    """A folder that is away for a short time leaves out saves. After a long time training waits for it. No step is lost."""
    folder = results.folders[kind]
    undisturbed = results.folders["undisturbed"]

    assert results.ends[kind] == "unfinished: False"
    assert list(read_metrics(folder.metrics)) == list(range(1, 11))
    assert sorted(saved_steps(folder)) == expected_steps
    events = [(event["event"], event["step"]) for event in read_entries(folder.events)]
    assert events == [("started", 0), *(("checkpoint", step) for step in expected_steps), ("finished", 10)]
    assert len(_views(folder)) == 2
    assert _views(folder) == _views(undisturbed)
    assert _losses(folder) == _losses(undisturbed)


def test_missed_saves_are_reported(results: Results) -> None:
    """The directory comes back before another run may take it over."""
    output = results.outputs["short"]
    assert output.count("the save after step") == 2
    assert "the save after step 4 waits" in output
    assert "training waits until it answers" not in output


def test_the_wait_for_a_folder_is_reported_once(results: Results) -> None:
    output = results.outputs["long"]
    assert output.count("another run may have taken it over: training waits until it answers") == 1


def test_a_run_that_is_stopped_without_its_folder_is_not_saved(results: Results) -> None:
    end = results.ends["stopped"]
    assert end.startswith("NotSaved: checkpoint ")
    assert "steps 3 to 4 are not saved" in end


def test_a_run_that_loses_its_data_without_its_folder_is_not_saved(results: Results) -> None:
    """The last save fails as well, so that the run has to be started again."""
    end = results.ends["without data"]
    assert end.startswith("NotSaved: the validation data after step 5 cannot be read")
    assert "steps 3 to 5 are not saved" in end


@pytest.mark.parametrize("results", [1], ids=["one rank"], indirect=True)
def test_a_run_that_was_taken_over_writes_nothing_more(results: Results) -> None:
    end = results.ends["taken over"]
    assert end.startswith("LeaseLost")
    assert "was taken over by process" in end
    folder = results.folders["taken over"]
    assert list(read_metrics(folder.metrics)) == [1, 2, 3]
    assert [event["event"] for event in read_entries(folder.events)] == ["started", "checkpoint"]


def _views(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.list_position_views().values()}


def _losses(folder: RunFolder) -> list[float]:
    return [entry["loss"] for entry in read_steps(folder.metrics)]


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
    """The command gets SIGTERM on two ranks whose files cannot grow.

    It saves when there is room again, or ends as a run to be started again. Either way the next start has all steps.
    """
    raw_config["training"]["steps"] = 1000
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))
    words = ["pretrain", "--config", str(path), "--resume", "auto", "--set", "checkpoint.interval=1000"]
    folder = RunFolder(Path(raw_config["run"]["directory"]))
    _stop_on_a_full_disk(words, folder, tmp_path / "start0", ExitStatus.UNFINISHED)
    _stop_on_a_full_disk(words, folder, tmp_path / "start1", ExitStatus.NOT_SAVED)
    # Only the first start has saved.
    (saved_step,) = saved_steps(folder)

    last_step = saved_step + 4
    with Workers([*words, "--set", f"training.steps={last_step}"], 2, tmp_path / "last") as workers:
        assert workers.statuses() == [0, 0], workers.logs()

    assert list(read_metrics(folder.metrics)) == list(range(1, last_step + 1))


def _stop_on_a_full_disk(words: list[str], folder: RunFolder, logs: Path, expected: ExitStatus) -> None:
    """Start the command, and stop it on a full disk, freeing space again if the run is expected to be saved."""
    before = max(read_metrics(folder.metrics), default=0)
    with Workers(words, 2, logs) as workers:
        workers.wait(lambda: max(read_metrics(folder.metrics), default=0) > before, "a step", 90)
        _limit_files(workers, 100_000)  # Bytes: less than a checkpoint's tensors, more than logs
        workers.signal(signal.SIGTERM)
        workers.wait(lambda: "trying again in 2 s" in workers.logs() or not workers.running(), "a failed attempt", 90)
        if expected == ExitStatus.UNFINISHED:
            _limit_files(workers, resource.RLIM_INFINITY)
        assert workers.statuses() == [expected] * 2, workers.logs()


def _limit_files(workers: Workers, size: int) -> None:
    """Keep the ranks' files from growing beyond this size in bytes."""
    for rank in workers.ranks:
        pid = int((workers.folder / f"rank{rank}.pid").read_text())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
