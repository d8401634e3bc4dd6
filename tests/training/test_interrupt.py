"""Ctrl-C on the public command: the step is finished, a checkpoint written, the exit clean, and the run goes on from there."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.workers import ROOT


def test_ctrl_c_leaves_a_checkpoint(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"]["steps"] = 1000
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    run = Path(raw_config["run"]["directory"])
    command = [sys.executable, "launch/pretrain.py", "--config", str(config)]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
            assert time.monotonic() < deadline and process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert "stopped on request after step" in output
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    checkpoint = run / "checkpoints" / f"step-{steps:08d}"
    assert json.loads((checkpoint / "state.json").read_text())["step"] == steps

    more = [*command, "--resume", "auto", "--set", f"training.steps={steps + 2}"]
    finished = subprocess.run(more, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert f"resumed from {checkpoint}" in finished.stdout
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == list(range(1, steps + 3))
