"""A fault of one rank's memory is found: weights and optimizer state that ranks must hold alike are compared."""

from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.startup.build_trainer import build_trainer
from megatape.zero.kinds import WEIGHT
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data

# Weights that are divided over tensor-parallel ranks, and held whole by each.
DIVIDED = "blocks.1.attention.query.weight"
WHOLE = "blocks.1.attention_norm.weight"

# Interval of checks beyond the last step.
NEVER = 100
LATER = "stage 0, after a check that found none"
FIRST = "this first check points to gradients that are not summed over the ranks"
# Name -> stage, rank whose memory fails, parameter, kind of its tensor, steps between checks, and error.
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
    results = run_workers("tests.zero.test_replica_check:train_with_faults", 4, raw_config, tmp_path / "workers")
    for result in results:  # all ranks end with the same error
        for (name, (*_, expected)), error in zip(FAULTS.items(), result, strict=True):
            if expected:
                assert expected in error, name
            else:
                assert error == "", name
            suspects_code = bool(expected) and name != LATER
            assert (FIRST in error) == suspects_code, (name, error)
    for name, (*_, expected) in FAULTS.items():
        checkpoints = list((tmp_path / "run" / name).glob("checkpoints/*"))
        assert bool(checkpoints) == (not expected), name


def train_with_faults(raw: dict[str, Any], topology: Topology) -> list[str]:
    """Return the errors of two steps with each fault."""
    return [_train(raw, topology, name) for name in FAULTS]


def _train(raw: dict[str, Any], topology: Topology, name: str) -> str:
    stage, victim, parameter, kind, interval, _ = FAULTS[name]
    changes = {
        "zero": {"stage": stage},
        "run": {"directory": f"{raw['run']['directory']}/{name}"},
        "training": raw["training"] | {"replica_check_interval": interval},
    }
    config = parse_config(raw | changes, name)
    print(f"case {name}", flush=True)
    run = build_trainer(config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease))
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
