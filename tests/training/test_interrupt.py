"""Ctrl-C on the public command: the step is finished, a checkpoint written, the exit clean, and the run goes on from there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from megatape.training.interrupt import UNFINISHED
from tests.workers import ROOT, free_port


def start(raw_config: dict[str, Any], folder: Path, *launcher: str) -> subprocess.Popen[str]:
    """Start training for 1000 steps by the public command, in a process group of its own, and wait for its first step."""
    raw_config["training"]["steps"] = 1000
    config = folder / "config.json"
    config.write_text(json.dumps(raw_config))
    log = Path(raw_config["run"]["directory"]) / "metrics.jsonl"
    process = subprocess.Popen(
        [*launcher, "launch/pretrain.py", "--config", str(config)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while not (log.exists() and log.read_text()):
        if time.monotonic() > deadline or process.poll() is not None:
            kill(process)
            raise AssertionError(f"no first step\n{process.communicate()[0]}")
        time.sleep(0.1)
    return process


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where the deepspeed command is
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": path}


def finish(process: subprocess.Popen[str]) -> str:
    """Press Ctrl-C: SIGINT to the whole group, as a terminal does. Returns the output once every process is gone."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=90)[0]
    finally:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def check_stopped(run: Path, output: str) -> Path:
    assert "stopped on request after step" in output
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    checkpoint = run / "checkpoints" / f"step-{steps:08d}"
    assert json.loads((checkpoint / "state.json").read_text())["step"] == steps < 1000, output
    return checkpoint


def test_ctrl_c_leaves_a_checkpoint(raw_config: dict[str, Any], tmp_path: Path) -> None:
    run = Path(raw_config["run"]["directory"])
    process = start(raw_config, tmp_path, sys.executable)
    output = finish(process)
    assert process.returncode == 0, output
    checkpoint = check_stopped(run, output)
    steps = int(checkpoint.name.removeprefix("step-"))

    more = [*process.args, "--resume", "auto", "--set", f"training.steps={steps + 2}"]
    finished = subprocess.run(more, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert f"resumed from {checkpoint}" in finished.stdout
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == list(range(1, steps + 3))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_schedulers_signal_asks_for_another_start(raw_config: dict[str, Any], tmp_path: Path, number: signal.Signals) -> None:
    process = start(raw_config, tmp_path, sys.executable)
    process.send_signal(number)
    try:
        output = process.communicate(timeout=90)[0]
    finally:
        kill(process)
    assert process.returncode == UNFINISHED, output
    check_stopped(Path(raw_config["run"]["directory"]), output)


def test_ctrl_c_under_the_deepspeed_launcher(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Four ranks, two of them tensor ranks, which get the signal from the terminal and from their launcher: one checkpoint, and no
    process stays."""
    raw_config["parallel"] = {"tp": 2}
    process = start(raw_config, tmp_path, "deepspeed", "--num_accelerators", "4", "--master_port", str(free_port()))
    check_stopped(Path(raw_config["run"]["directory"]), finish(process))
