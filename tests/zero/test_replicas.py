"""A fault of one rank's memory is found: weights and optimizer state that ranks must hold alike are compared."""

from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.data.training.mixture import open_data
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.trainer import Trainer
from megatape.zero.state import WEIGHT
from tests.helpers.workers import run_workers

DIVIDED, WHOLE = "blocks.1.attention.query.weight", "blocks.1.attention_norm.weight"  # over tensor-parallel ranks
NEVER = 100  # beyond the last step
LATER = "stage 0, after a check that found none"
FIRST = "this first check points to gradients that are not summed over the ranks"
# stage, rank whose memory fails, parameter, kind of its tensor, steps between checks, what is found
FAULTS: dict[str, tuple[int, int, str, str, int, str]] = {
    "none": (0, -1, WHOLE, WEIGHT, 1, ""),
    "stage 0": (0, 3, DIVIDED, WEIGHT, 1, f"{DIVIDED} differs between ranks 1, 3"),
    "stage 0, before a save": (0, 3, WHOLE, WEIGHT, NEVER, f"{WHOLE} on rank 3 is not what the other 3 ranks have"),
    LATER: (0, 3, DIVIDED, WEIGHT, 1, f"{DIVIDED} differs between ranks 1, 3"),
    "stage 3, moment": (3, 2, WHOLE, "exp_avg", 1, f"{WHOLE} differs between ranks 2, 3, and 1 other tensor"),
}


@pytest.mark.slow
def test_differing_replicas_are_found(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"] |= {"steps": 2}
    raw_config["parallel"] = {"tp": 2}
    results = run_workers("tests.zero.test_replicas:train_with_faults", 4, raw_config, tmp_path / "workers")
    for result in results:  # all ranks end with the same error
        for (name, (*_, expected)), error in zip(FAULTS.items(), result, strict=True):
            assert expected in error if expected else error == "", (name, error)
            assert (FIRST in error) == (bool(expected) and name != LATER), (name, error)
    for name, (*_, expected) in FAULTS.items():
        assert bool(list((tmp_path / "run" / name).glob("checkpoints/*"))) == (not expected), name


def train_with_faults(raw: dict[str, Any], topology: Topology) -> list[str]:
    """The errors of two steps with each fault."""
    return [_train(raw, topology, name) for name in FAULTS]


def _train(raw: dict[str, Any], topology: Topology, name: str) -> str:
    stage, victim, parameter, kind, interval, _ = FAULTS[name]
    raw = raw | {"zero": {"stage": stage}, "run": {"directory": f"{raw['run']['directory']}/{name}"}}
    config = parse_config(raw | {"training": raw["training"] | {"replica_check_interval": interval}}, name)
    print(f"case {name}", flush=True)
    run = Trainer(config, open_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease))
    if name == LATER:
        run.engine.check_replicas()
    if topology.rank == victim:
        piece = run.engine.state.piece(parameter, kind).values
        piece.copy_(piece * 1.5 + (kind != WEIGHT))
    try:
        run.train()
    except TrainingDiverged as error:
        return str(error)
    return ""
