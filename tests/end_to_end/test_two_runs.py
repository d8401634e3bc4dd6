"""Two runs in one folder, as commands."""

import json
import signal
from pathlib import Path
from typing import Any

from megatape.run_folder import RunFolder
from tests.helpers.processes.waiting import has_ended
from tests.helpers.processes.workers import Workers
from tests.helpers.runs.run_folders import num_recorded_steps


def test_the_second_run_is_refused_until_the_first_is_dead(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The first run continues. After kill -9 another takes over at once, and removes the dead run's partial checkpoint."""
    folder = RunFolder(Path(raw_config["run"]["directory"]))
    raw_config["training"]["steps"] = 1000
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    words = ["pretrain", "--config", str(config), "--resume", "auto", "--set", "checkpoint.interval=5"]

    with Workers(words, 1, tmp_path / "first") as first:
        first.wait(lambda: folder.list_checkpoints() or not first.running(), "the first checkpoint", 90)
        pid = (tmp_path / "first" / "rank0.pid").read_text()
        with Workers(words, 2, tmp_path / "second") as second:
            assert second.statuses() == [2, 2], second.logs()
        refusal = f"error: run.directory {folder.directory} is in use by a run: process {pid} on host"
        assert second.logs([0]).count(refusal) == 1
        assert "error" not in second.logs([1]), "one rank of each host shows the error"
        steps = num_recorded_steps(folder)
        first.wait(lambda: num_recorded_steps(folder) > steps, "another step", 60)
        first.signal(signal.SIGKILL)
        first.wait(lambda: has_ended(int(pid)), "the end of the killed process", 10)

    nonce = json.loads(folder.lease.read_text())["nonce"]
    partial = folder.checkpoints / f"step-00000999.{nonce}.tmp"
    partial.mkdir(exist_ok=True)
    with Workers(words, 1, tmp_path / "third") as third:
        third.wait(lambda: "checkpoint " in third.logs() or not third.running(), "the next checkpoint", 90)
        third.signal(signal.SIGTERM)
        third.statuses()

    assert f"process {pid} " in third.logs()
    assert "has ended: this run takes over" in third.logs()
    assert "resumed from" in third.logs()
    assert not partial.exists()
    assert not folder.lease.exists()
