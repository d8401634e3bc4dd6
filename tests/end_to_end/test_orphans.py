"""`deepspeed` or its launcher is killed: the ranks notice, write a checkpoint and end."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from megatape.run_folder import RunFolder
from tests.helpers.processes.launcher import start_deepspeed
from tests.helpers.processes.load import scaled
from tests.helpers.processes.waiting import wait_until
from tests.helpers.runs.run_folders import num_recorded_steps


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["deepspeed", "deepspeed.launcher.launch"])
def test_ranks_stop_with_a_checkpoint(raw_config: dict[str, Any], tmp_path: Path, killed: str) -> None:
    raw_config["training"]["steps"] = 1000
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    folder = RunFolder(Path(raw_config["run"]["directory"]))
    log = tmp_path / "log"
    with log.open("w") as file:
        runner = start_deepspeed(2, ["--config", str(config)], file)

    descendants: list[psutil.Process] = []
    try:
        wait_until(
            lambda: num_recorded_steps(folder) > 0, "the first step", 180, process=runner, details=log.read_text, interval=0.1
        )
        descendants = psutil.Process(runner.pid).children(recursive=True)
        victim = runner.pid
        if killed == "deepspeed.launcher.launch":
            victim = psutil.Process(runner.pid).children()[0].pid
        os.kill(victim, signal.SIGKILL)
        _, alive = psutil.wait_procs(descendants, timeout=scaled(60))
        assert alive == [], log.read_text()
    finally:
        for process in [runner, *descendants]:
            with suppress(psutil.Error, ProcessLookupError):
                process.kill()
        runner.wait()

    output = log.read_text()
    assert "has ended: this rank stops" in output, output
    assert "stopped on request after step" in output, output
    last_step = num_recorded_steps(folder)
    assert list(folder.checkpoints.iterdir()) == [folder.checkpoint(last_step)]
