"""A rank that dies in the middle of training: all others end within a minute and name the dead rank.

A stranger's message in the ranks' store, claiming that the run ended well, neither ends the ranks nor hides the death.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.run_folder import RunFolder
from tests.helpers.processes.strangers import pretend_success
from tests.helpers.processes.workers import Workers
from tests.helpers.runs.run_folders import num_recorded_steps


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_all_end_and_name_the_rank(raw_config: dict[str, Any], tmp_path: Path, victim: int) -> None:
    raw_config["training"]["steps"] = 1000
    raw_config["parallel"] = {"tp": 2}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    folder = RunFolder(Path(raw_config["run"]["directory"]))

    with Workers(["pretrain", "--config", str(config)], 4, tmp_path) as workers:
        workers.wait(lambda: not workers.running() or num_recorded_steps(folder) >= 3, "3 steps", 120)
        assert workers.running() == [0, 1, 2, 3], workers.logs()
        pretend_success(workers.port)
        workers.kill(victim)
        statuses = workers.statuses(timeout=60)

    for rank, status in enumerate(statuses):
        if rank == victim:
            continue
        output = workers.logs([rank])
        assert status not in (0, -9), output
        assert f"error on rank {rank}: rank {victim} " in output, output
