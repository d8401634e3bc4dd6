"""A rank that keeps the others waiting at every step is named, once, while the run goes on."""

import json
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
from megatape.utils.json_lines import read_lines
from tests.helpers.processes.workers import Workers


@pytest.mark.slow
def test_a_slow_rank_is_named(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"]["steps"] = 30
    raw_config["zero"] = {"stage": 2}
    folder = tmp_path / "workers"
    folder.mkdir()
    (folder / "payload.json").write_text(json.dumps(raw_config))
    with Workers("tests.end_to_end.test_slow_rank:train", 2, folder) as workers:
        assert workers.statuses(120) == [0, 0], workers.logs()
    events = [entry for _, entry in read_lines(RunFolder(Path(raw_config["run"]["directory"])).events)]
    details = [event["detail"] for event in events if event["event"] == "slow rank"]
    assert len(details) == 1 and details[0].startswith("rank 1 (host "), events
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
