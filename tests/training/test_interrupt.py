"""Ctrl-C on the public command: the step is finished, a checkpoint written, the exit clean, and the run goes on from there."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from megatape.training.interrupt import UNFINISHED
from tests.workers import ROOT, Workers, free_port


@pytest.fixture
def words(raw_config: dict[str, Any], tmp_path: Path) -> list[str]:
    """A command that trains for 1000 steps."""
    raw_config["training"]["steps"] = 1000
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    return ["pretrain", "--config", str(config)]


def begun(raw_config: dict[str, Any]) -> bool:
    """Whether the run has made a step."""
    log = Path(raw_config["run"]["directory"]) / "metrics.jsonl"
    return log.exists() and bool(log.read_text())


def check_stopped(run: Path, output: str) -> Path:
    assert "stopped on request after step" in output
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    checkpoint = run / "checkpoints" / f"step-{steps:08d}"
    assert json.loads((checkpoint / "state.json").read_text())["step"] == steps < 1000, output
    return checkpoint


def stop(words: list[str], raw_config: dict[str, Any], folder: Path, number: signal.Signals) -> tuple[int | None, str]:
    """Run the command in one process and send it a signal after its first step. Returns its exit status and what it printed."""
    with Workers(words, 1, folder) as workers:
        workers.wait(lambda: begun(raw_config) or not workers.running(), "the first step", 90)
        workers.signal(number)
        (status,) = workers.statuses()
    return status, workers.logs()


def test_ctrl_c_leaves_a_checkpoint(words: list[str], raw_config: dict[str, Any], tmp_path: Path) -> None:
    run = Path(raw_config["run"]["directory"])
    status, output = stop(words, raw_config, tmp_path / "first", signal.SIGINT)
    assert status == 0, output
    checkpoint = check_stopped(run, output)
    steps = int(checkpoint.name.removeprefix("step-"))

    more = [*words, "--resume", "auto", "--set", f"training.steps={steps + 2}"]
    with Workers(more, 1, tmp_path / "second") as workers:
        assert workers.statuses() == [0], workers.logs()
    assert f"resumed from {checkpoint}" in workers.logs()
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == list(range(1, steps + 3))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_schedulers_signal_asks_for_another_start(
    words: list[str], raw_config: dict[str, Any], tmp_path: Path, number: signal.Signals
) -> None:
    status, output = stop(words, raw_config, tmp_path / "workers", number)
    assert status == UNFINISHED, output
    check_stopped(Path(raw_config["run"]["directory"]), output)


def test_ctrl_c_under_the_deepspeed_launcher(words: list[str], raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Four ranks, two of them tensor-parallel ranks, which get the signal from the terminal and from their launcher: one checkpoint,
    and no process stays."""
    launcher = ["deepspeed", "--num_accelerators", "4", "--master_port", str(free_port())]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where the deepspeed command is
    process = subprocess.Popen(
        [*launcher, "launch/pretrain.py", *words[1:], "--set", "parallel.tp=2"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 180
        while not begun(raw_config) and process.poll() is None:
            assert time.monotonic() < deadline, "no first step within three minutes"
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=90)[0]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    check_stopped(Path(raw_config["run"]["directory"]), output)
