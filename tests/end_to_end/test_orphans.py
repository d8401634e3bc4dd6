"""`deepspeed` or its launcher is killed: the ranks notice, write a checkpoint and end."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import ROOT, free_port


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["deepspeed", "deepspeed.launcher.launch"])
def test_ranks_stop_with_a_checkpoint(raw_config: dict[str, Any], tmp_path: Path, killed: str) -> None:
    raw_config["training"]["steps"] = 1000
    config = tmp_path / "config.json"
    run = Path(raw_config["run"]["directory"])
    config.write_text(json.dumps(raw_config))
    words = ["deepspeed", "--num_accelerators", "2", "--master_port", str(free_port())]
    with (tmp_path / "log").open("w") as log:
        runner = subprocess.Popen(
            [*words, "launch/pretrain.py", "--config", str(config)],
            cwd=ROOT,
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    descendants: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 180
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
            assert runner.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        descendants = psutil.Process(runner.pid).children(recursive=True)
        launch = psutil.Process(runner.pid).children()[0]
        os.kill(runner.pid if killed == "deepspeed" else launch.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(descendants, timeout=scaled(60))
        assert not alive, (tmp_path / "log").read_text()
    finally:
        for process in [runner, *descendants]:
            with suppress(psutil.Error, ProcessLookupError):
                process.kill()
        runner.wait()
    text = (tmp_path / "log").read_text()
    assert "has ended: this rank stops" in text and "stopped on request after step" in text, text
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step-{steps:08d}"]
