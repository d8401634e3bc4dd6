"""A rank that dies in the middle of training: all others end within a minute and name the dead rank.

A stranger's message in the ranks' store, claiming that the run ended well, neither ends the ranks nor hides the death.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes.strangers import pretend_success
from tests.helpers.processes.workers import Workers


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_all_end_and_name_the_rank(raw_config: dict[str, Any], tmp_path: Path, victim: int) -> None:
    raw_config["training"]["steps"] = 1000
    raw_config["parallel"] = {"tp": 2}
    config = tmp_path / "config.json"
    metrics = Path(raw_config["run"]["directory"]) / "metrics.jsonl"
    config.write_text(json.dumps(raw_config))
    with Workers(["pretrain", "--config", str(config)], 4, tmp_path) as workers:
        workers.wait(
            lambda: not workers.running() or (metrics.exists() and len(metrics.read_text().splitlines()) >= 3), "3 steps", 120
        )
        assert workers.running() == [0, 1, 2, 3], workers.logs()
        pretend_success(workers.port)
        workers.kill(victim)
        statuses = workers.statuses(timeout=60)
    for rank, status in enumerate(statuses):
        if rank != victim:
            text = workers.logs([rank])
            assert status not in (0, -9), text
            assert f"error on rank {rank}: rank {victim} " in text, text
