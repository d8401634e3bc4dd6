"""Data that vanish or change during a run: every rank ends with the same message, after a checkpoint of what was trained. And a
run whose lease another one took: it ends without another word into the folder."""

import copy
import shutil
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megatape.config import parse_config
from megatape.data.shards.shard_file import ShardFile
from megatape.data.training.loader import Loader
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease, LeaseTimeouts, hold
from megatape.reliability.watch.rank_errors import RankFailed
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.reliability.watch.watch import Watch
from megatape.run_folder import RunFolder, read_metrics
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.steps.prefetch import Prefetcher
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data

WATCHED = WatchTimeouts(period=0.1)


def disturb(kind: str, data: Path, lease: Lease, topology: Topology) -> None:
    """What happens before any rank reads the samples of step 3, or during step 3 to a run that is taken over."""
    if kind == "one rank" and topology.rank == 1:
        patch.object(ShardFile, "read", side_effect=PermissionError("rank 1 may not read")).start()
    if not topology.is_main:
        return
    if kind == "truncated":
        (data / "train-000000.tar").open("r+b").truncate(1000)
    if kind == "overwritten":
        (data / "train-000000.tar").write_bytes(b"\1" * (data / "train-000000.tar").stat().st_size)
    if kind == "removed":
        shutil.rmtree(data)  # the training shard stays open, that of the evaluation was not opened yet
    if kind == "taken over":
        content = lease.path.read_text()
        lease.path.write_text(content.replace(lease.nonce, "another"))


def wait_for_all(folder: Path, topology: Topology) -> None:
    """Wait until every rank is here."""
    folder.mkdir(exist_ok=True)
    (folder / str(topology.rank)).touch()
    while len(list(folder.iterdir())) < topology.world_size:
        time.sleep(0.01)


def train_disturbed(payload: dict[str, Any], topology: Topology) -> list[str]:
    """The error that ends each of {"config": base, "kinds": [...], "data": folder of a copy for each}."""
    errors = []
    step = Loader.step
    start = Prefetcher.start
    for kind in payload["kinds"]:
        raw = copy.deepcopy(payload["config"])
        data = Path(payload["data"]) / kind
        raw["data"]["path"], raw["run"]["directory"] = str(data), str(Path(raw["run"]["directory"]) / kind)
        config = parse_config(raw, kind)

        def read(self: Loader, consumed: int, kind: str = kind, data: Path = data) -> Any:
            if kind != "taken over" and consumed == 2 * 8:
                wait_for_all(data.with_name(f"{kind}-ready"), topology)  # some steps ahead, each rank at its own pace
                disturb(kind, data, lease, topology)
                wait_for_all(data.with_name(f"{kind}-disturbed"), topology)
            return step(self, consumed)

        def begin(self: Prefetcher, consumed: int, kind: str = kind, data: Path = data) -> None:
            if kind == "taken over" and consumed == 3 * 8:
                disturb(kind, data, lease, topology)
            start(self, consumed)

        patched: AbstractContextManager[Any] = patch.multiple(Loader, step=read)
        begun: AbstractContextManager[Any] = patch.multiple(Prefetcher, start=begin)
        path = RunFolder(Path(raw["run"]["directory"])).lease
        try:
            # Its keys in the store are there once: only the last kind uses it.
            watch = Watch(topology, WATCHED) if kind == "taken over" else nullcontext()
            with patched, begun, watch, hold(path, topology, LeaseTimeouts(heartbeat_interval=0.01)) as lease:
                build_trainer(config, open_run_data(config), topology, lease).train()
            errors.append("none")
        except (ValueError, RankFailed) as error:
            errors.append(f"{type(error).__name__}: {error}")
        patch.stopall()
    return errors


@pytest.mark.slow
def test_data_that_cannot_be_read(raw_config: dict[str, Any], data_directory: Path, tmp_path: Path) -> None:
    told = {
        "truncated": ["step 3", "truncated/train-000000.tar", "member 0: truncated, "],
        "overwritten": ["step 3", "overwritten/train-000000.tar member 0: corrupted, bytes"],
        "one rank": ["step 3", "rank 1 may not read"],
        "removed": ["the validation data after step 4", "removed/validation-000000.tar: shard not found"],
        "taken over": ["was taken over by process"],
    }
    for kind in told:
        shutil.copytree(data_directory, tmp_path / "data" / kind)
    payload = {"config": raw_config, "kinds": list(told), "data": str(tmp_path / "data")}
    target = "tests.end_to_end.test_data_lost:train_disturbed"
    first, second = run_workers(target, 2, payload, tmp_path / "workers")
    assert first[:-1] == second[:-1], "all ranks tell the same"
    assert "LeaseLost: run.directory" in first[-1] and "RankFailed: rank 0 failed: LeaseLost" in second[-1]
    root = Path(raw_config["run"]["directory"])
    for (kind, parts), error in zip(told.items(), first, strict=True):
        for part in parts:
            assert part in error, (kind, error)
        checkpoints = [path.name for path in RunFolder(root / kind).list_checkpoints()]
        if kind == "taken over":
            assert checkpoints == [] and len(read_metrics(root / kind / "metrics.jsonl")) == 2, "nothing was written any more"
            assert "another" in RunFolder(root / kind).lease.read_text(), "and the other's lease stays"
        else:
            step = 4 if kind == "removed" else 2
            assert checkpoints == [f"step-{step:08d}"] and f"checkpoint {root / kind}/checkpoints/{checkpoints[0]}" in error
            assert list(read_metrics(root / kind / "metrics.jsonl")) == list(range(1, step + 1)), "no step is lost"
            assert not RunFolder(root / kind).lease.exists()
