"""A rank that keeps the others waiting at every step is named, once, while the run continues."""

import os
import time
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.model.transformer import Transformer
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.run_folder import RunFolder
from megatape.training.pretrain import pretrain
from tests.helpers.processes.workers import start_workers
from tests.helpers.runs.run_folders import read_entries


@pytest.mark.slow
def test_a_slow_rank_is_named(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"]["steps"] = 30
    raw_config["zero"] = {"stage": 2}

    with start_workers("tests.end_to_end.test_slow_rank:train", 2, raw_config, tmp_path / "workers") as workers:
        assert workers.statuses(120) == [0, 0], workers.logs()

    events = read_entries(RunFolder(Path(raw_config["run"]["directory"])).events)
    details = [event["detail"] for event in events if event["event"] == "slow rank"]
    assert len(details) == 1, events
    assert details[0].startswith("rank 1 (host "), events
    assert f"warning: {details[0]}\n" in workers.logs([0])


def train(raw_config: dict[str, Any], topology: Topology) -> NoReturn:
    forward = Transformer.forward

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.15)
        return forward(*arguments, **options)

    if topology.rank == 1:
        Transformer.forward = slow  # type: ignore[method-assign]
    with patch("megatape.reliability.watch.pace.WINDOW", 8):
        os._exit(pretrain(parse_config(raw_config, "test"), timeouts=WatchTimeouts(period=0.1)))
