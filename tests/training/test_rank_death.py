"""A rank that dies in the middle of training: all others end within a minute and say which one it was."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workers import ROOT, free_port

WORLD = 4


def start(raw_config: dict[str, Any], folder: Path) -> list[subprocess.Popen[str]]:
    """Four ranks, each writing rank<r>.log, as a launcher starts them but without one that would end them."""
    raw_config["training"]["steps"] = 1000
    raw_config["parallel"] = {"tp": 2}
    config = folder / "config.json"
    config.write_text(json.dumps(raw_config))
    port = free_port()
    processes = []
    for rank in range(WORLD):
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD, "LOCAL_WORLD_SIZE": WORLD, "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in places.items()}
        environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (folder / f"rank{rank}.log").open("w") as log:
            command = [sys.executable, "launch/pretrain.py", "--config", str(config)]
            processes.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
            )
    return processes


@pytest.mark.parametrize("victim", [0, 2])
def test_all_end_and_name_the_rank(raw_config: dict[str, Any], tmp_path: Path, victim: int) -> None:
    processes = start(raw_config, tmp_path)
    try:
        metrics = Path(raw_config["run"]["directory"]) / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
            assert time.monotonic() < deadline and all(process.poll() is None for process in processes), logs(tmp_path)
            time.sleep(0.1)
        processes[victim].kill()
        died = time.monotonic()
        while any(process.poll() is None for process in processes):
            running = [rank for rank, process in enumerate(processes) if process.poll() is None]
            assert time.monotonic() < died + 60, f"ranks {running} still run a minute later\n{logs(tmp_path)}"
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        if rank != victim:
            text = (tmp_path / f"rank{rank}.log").read_text()
            assert process.returncode not in (0, -9), text
            assert f"error on rank {rank}: rank {victim} " in text, text


def logs(folder: Path) -> str:
    return "\n".join((folder / f"rank{rank}.log").read_text()[-2000:] for rank in range(WORLD))
