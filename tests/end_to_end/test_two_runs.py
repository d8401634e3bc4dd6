"""Two runs in one folder, as commands."""

import json
import signal
from pathlib import Path
from typing import Any

from tests.helpers.processes.workers import Workers


def test_the_second_run_is_refused_until_the_first_is_dead(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The first one goes on. After kill -9 another takes over at once, and removes what the dead one left half written."""
    run = Path(raw_config["run"]["directory"])
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config | {"training": raw_config["training"] | {"steps": 1000}}))
    words = ["pretrain", "--config", str(config), "--resume", "auto", "--set", "checkpoint.interval=5"]

    with Workers(words, 1, tmp_path / "first") as first:
        first.wait(lambda: list(run.glob("checkpoints/step-*[0-9]")) or not first.running(), "the first checkpoint", 90)
        pid = (tmp_path / "first" / "rank0.pid").read_text()
        with Workers(words, 2, tmp_path / "second") as second:
            assert second.statuses() == [2, 2], second.logs()
        assert second.logs([0]).count(f"error: run.directory {run} is in use by a run: process {pid} on host") == 1
        assert "error" not in second.logs([1]), "one rank of each host tells"
        steps = len((run / "metrics.jsonl").read_bytes().splitlines())
        first.wait(lambda: len((run / "metrics.jsonl").read_bytes().splitlines()) > steps, "another step", 60)
        first.signal(signal.SIGKILL)
        first.wait(lambda: not Path(f"/proc/{pid}").exists(), "its death", 10)

    nonce = json.loads((run / "lease.json").read_text())["nonce"]
    partial = run / "checkpoints" / f"step-00000999.{nonce}.tmp"
    partial.mkdir(exist_ok=True)
    with Workers(words, 1, tmp_path / "third") as third:
        third.wait(lambda: "checkpoint " in third.logs() or not third.running(), "the next checkpoint", 90)
        third.signal(signal.SIGTERM)
        third.statuses()
    assert f"process {pid} " in third.logs() and "has ended: this run takes over" in third.logs()
    assert "resumed from" in third.logs()
    assert not partial.exists() and not (run / "lease.json").exists()
