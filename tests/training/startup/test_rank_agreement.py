"""With differing inputs, or one rank failing to start, all ranks refuse, naming ranks and differences."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config, shared_values
from megatape.data.training.run_data import RunData
from megatape.distributed.topology import Topology
from megatape.errors import RankMismatch
from megatape.training.pretrain import pretrain
from megatape.training.startup import rank_agreement
from megatape.training.startup.rank_agreement import open_together
from tests.helpers.processes.workers import Workers, run_workers
from tests.helpers.runs.run_data import open_run_data

ARGUMENTS = {"resume": None, "profile": 0, "allow_changes": False}


def test_differences_between_ranks(raw_config: dict[str, Any], data_directory: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    other = tmp_path / "other"
    for path in (copied, other):
        shutil.copytree(data_directory, path)
    index = other / "index.json"
    index.write_text(index.read_text().replace('"documents": 1', '"documents": 2', 1))
    # Changes on rank 1 of 3, and parts of the error on all ranks. Without parts, there is no error.
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"training.seed": 5}, ["training.seed is 1234 on ranks 0, 2 (", "5 on rank 1 ("]),
        (
            {"training.steps": 7, "checkpoint.interval": 2},
            ["training.steps is 4", "7 on rank 1", "checkpoint.interval is 1000"],
        ),
        ({"model.scaling": {"kind": "linear", "factor": 2.0}}, ["model.scaling is null on ranks 0, 2", '{"kind": "linear"']),
        ({"resume": "auto"}, ["resume is null on ranks 0, 2", '"auto" on rank 1']),
        ({"code": "changed"}, ["the code's hash is", '"changed" on rank 1']),
        ({"data.path": str(tmp_path / "nothing")}, ["rank 1 (", str(tmp_path / "nothing")]),
        ({"data.path": str(other)}, ["the hash of the data is", "on rank 1"]),
        ({"training.global_batch_size": 8}, ["rank 1 (", "8 = ", "training.global_batch_size is 6"]),
        ({"data.path": str(copied), "data.cache": str(tmp_path / "cache")}, []),
    ]
    raw_config["training"] |= {"global_batch_size": 6, "micro_batch_size": 1}
    payload = {"config": raw_config, "cases": [given for given, _ in cases]}
    everyone = run_workers("tests.training.startup.test_rank_agreement:open_differently", 3, payload, tmp_path / "workers")
    assert everyone[0] == everyone[1] == everyone[2], "all ranks fail with the same message, or none does"
    for (given, parts), error in zip(cases, everyone[0], strict=True):
        assert all(part in error for part in parts), (given, error)
        assert bool(parts) == bool(error), (given, error)


def open_differently(payload: dict[str, Any], topology: Topology) -> list[str]:
    return [_open(payload["config"], case if topology.rank == 1 else {}, topology) for case in payload["cases"]]


def _open(raw: dict[str, Any], changes: dict[str, Any], topology: Topology) -> str:
    raw = json.loads(json.dumps(raw))
    arguments = dict(ARGUMENTS)
    rank_agreement.source_hash = lambda: changes.get("code", "the same")
    for path, value in changes.items():
        section, dot, key = path.partition(".")
        if dot:
            raw.setdefault(section, {})[key] = value
        elif path in arguments:
            arguments[path] = value
    try:
        config = parse_config(raw, "test")

        def open_rank() -> RunData:
            config.check_divides(topology.world_size)
            return open_run_data(config)

        open_together(shared_values(config) | arguments, open_rank, config.logging.sinks, topology)
    except RankMismatch as error:
        return str(error)
    return ""


@pytest.mark.parametrize("victim", [0, 1])
def test_one_rank_cannot_open_its_data(raw_config: dict[str, Any], tmp_path: Path, victim: int) -> None:
    """The whole command ends with status 2 on all ranks, none hangs, and one rank per host prints the reason."""
    folder = tmp_path / "workers"
    folder.mkdir()
    (folder / "payload.json").write_text(json.dumps({"config": raw_config, "victim": victim}))
    with Workers("tests.training.startup.test_rank_agreement:start", 2, folder) as workers:
        assert workers.statuses(60) == [2, 2], workers.logs()
    assert f"error: the ranks cannot train together: rank {victim} (" in workers.logs([0])
    assert "/nowhere" in workers.logs([0])
    assert "error" not in workers.logs([1])


def start(payload: dict[str, Any], topology: Topology) -> None:
    if topology.rank == payload["victim"]:
        payload["config"]["data"]["path"] = "/nowhere"
    os._exit(pretrain(parse_config(payload["config"], "test")))
