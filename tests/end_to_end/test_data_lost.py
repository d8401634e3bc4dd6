"""Data that vanish or change during a run: every rank ends with the same message, after saving its last step.

A run whose lease another run took over ends without writing to the folder again.
"""

import copy
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megatape.config import parse_config
from megatape.data.shards.reading.shard_file import ShardFile
from megatape.data.training.batches.loader import Loader
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease, LeaseTimeouts, hold
from megatape.reliability.watch.rank_errors import RankFailed
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.reliability.watch.watch import Watch
from megatape.run_folder import RunFolder, read_metrics
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.steps.prefetch import Prefetcher
from tests.helpers.processes.waiting import wait_until
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data

WATCHED = WatchTimeouts(period=0.1)
SAMPLES_PER_STEP = 8
TAKEN_OVER = "taken over"
# Kind of disturbance -> parts of the error ending the run
EXPECTED_ERRORS = {
    "truncated": ["step 3", "truncated/train-000000.tar", "member 0: truncated, "],
    "overwritten": ["step 3", "overwritten/train-000000.tar member 0: corrupted, bytes"],
    "one rank": ["step 3", "rank 1 may not read"],
    "removed": ["the validation data after step 4", "removed/validation-000000.tar: shard not found"],
    TAKEN_OVER: ["was taken over by process"],
}


def disturb(kind: str, data: Path, lease: Lease, topology: Topology) -> None:
    """Disturb a run before any rank reads samples for step 3, or during step 3 if the run is taken over."""
    if kind == "one rank" and topology.rank == 1:
        patch.object(ShardFile, "read", side_effect=PermissionError("rank 1 may not read")).start()
    if not topology.is_main:
        return
    shard = data / "train-000000.tar"
    if kind == "truncated":
        with shard.open("r+b") as file:
            file.truncate(1000)
    if kind == "overwritten":
        shard.write_bytes(b"\1" * shard.stat().st_size)
    if kind == "removed":
        shutil.rmtree(data)  # the training shard stays open, the validation shard was not opened yet
    if kind == TAKEN_OVER:
        content = lease.path.read_text()
        lease.path.write_text(content.replace(lease.nonce, "another"))


def wait_for_all(folder: Path, topology: Topology) -> None:
    """Wait until every rank has called this function."""
    folder.mkdir(exist_ok=True)
    (folder / str(topology.rank)).touch()
    wait_until(lambda: len(list(folder.iterdir())) >= topology.world_size, f"all ranks in {folder}", 180, interval=0.01)


def train_disturbed(payload: dict[str, Any], topology: Topology) -> list[str]:
    """Train {"config": base, "kinds": [...], "data": folder of a copy for each kind}. Returns the errors that end the runs."""
    errors = []
    for kind in payload["kinds"]:
        raw = copy.deepcopy(payload["config"])
        raw["data"]["path"] = str(Path(payload["data"]) / kind)
        raw["run"]["directory"] = str(Path(raw["run"]["directory"]) / kind)
        try:
            _train(kind, raw, topology)
            errors.append("none")
        except (ValueError, RankFailed) as error:
            errors.append(f"{type(error).__name__}: {error}")
        patch.stopall()
    return errors


def _train(kind: str, raw: dict[str, Any], topology: Topology) -> None:
    config = parse_config(raw, kind)
    data = Path(config.data.path)
    original_step = Loader.step
    original_start = Prefetcher.start

    def step(loader: Loader, consumed: int) -> Any:
        # Loaders read some steps ahead, each rank at its own pace.
        if kind != TAKEN_OVER and consumed == 2 * SAMPLES_PER_STEP:
            wait_for_all(data.with_name(f"{kind}-ready"), topology)
            disturb(kind, data, lease, topology)
            wait_for_all(data.with_name(f"{kind}-disturbed"), topology)
        return original_step(loader, consumed)

    def start(prefetcher: Prefetcher, consumed: int) -> None:
        if kind == TAKEN_OVER and consumed == 3 * SAMPLES_PER_STEP:
            disturb(kind, data, lease, topology)
        original_start(prefetcher, consumed)

    # A watch's keys stay in the store, so only one kind can use it.
    watch: Any = nullcontext()
    if kind == TAKEN_OVER:
        watch = Watch(topology, WATCHED)
    path = RunFolder(Path(config.run.directory)).lease
    with (
        patch.object(Loader, "step", step),
        patch.object(Prefetcher, "start", start),
        watch,
        hold(path, topology, LeaseTimeouts(heartbeat_interval=0.01)) as lease,
    ):
        build_trainer(config, open_run_data(config), topology, lease).train()


@pytest.mark.slow
def test_data_that_cannot_be_read(raw_config: dict[str, Any], data_directory: Path, tmp_path: Path) -> None:
    kinds = list(EXPECTED_ERRORS)
    for kind in kinds:
        shutil.copytree(data_directory, tmp_path / "data" / kind)
    payload = {"config": raw_config, "kinds": kinds, "data": str(tmp_path / "data")}

    errors, errors_of_rank_1 = run_workers("tests.end_to_end.test_data_lost:train_disturbed", 2, payload, tmp_path / "workers")

    for kind, error, error_of_rank_1 in zip(kinds, errors, errors_of_rank_1, strict=True):
        for part in EXPECTED_ERRORS[kind]:
            assert part in error, kind
        if kind != TAKEN_OVER:
            assert error_of_rank_1 == error, "all ranks end with the same error"
        folder = RunFolder(Path(raw_config["run"]["directory"]) / kind)
        if kind == TAKEN_OVER:
            assert "LeaseLost: run.directory" in error
            assert "RankFailed: rank 0 failed: LeaseLost" in error_of_rank_1
            check_left_alone(folder)
        else:
            last_step = 4 if kind == "removed" else 2
            check_saved(folder, last_step, error)


def check_left_alone(folder: RunFolder) -> None:
    """Check that the run wrote nothing after it lost its lease, and that the other run's lease stays."""
    assert folder.list_checkpoints() == []
    assert len(read_metrics(folder.metrics)) == 2
    assert "another" in folder.lease.read_text()


def check_saved(folder: RunFolder, last_step: int, error: str) -> None:
    """Check that no step is lost, and that the error names the last step's checkpoint."""
    checkpoint = folder.checkpoint(last_step)
    assert folder.list_checkpoints() == [checkpoint]
    assert f"checkpoint {checkpoint}" in error
    assert list(read_metrics(folder.metrics)) == list(range(1, last_step + 1))
    assert not folder.lease.exists()
