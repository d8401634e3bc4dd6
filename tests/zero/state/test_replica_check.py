"""Comparing replicas: a fault in one rank's memory is found in weights and optimizer state replicated over ranks."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.distributed.values.serialization import decode, encode
from megatape.errors import TrainingDiverged
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.startup.build_trainer import build_trainer
from megatape.zero.state.kinds import WEIGHT, TensorKey
from megatape.zero.state.replica_check import describe_differences
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data

# A weight sharded over tensor-parallel ranks, and one replicated on them.
SHARDED = "blocks.1.attention.query.weight"
REPLICATED = "blocks.1.attention_norm.weight"

# Interval of checks that is beyond the last step
NEVER = 100

LATER = "stage 0, after a check that found none"
FIRST = "this first check points to gradients that are not summed over the ranks"


class Fault(NamedTuple):
    """A fault in the memory of one rank.

    Attributes:
        stage: ZeRO stage.
        rank: Rank whose memory fails, None for no fault.
        parameter: Parameter whose tensor changes.
        error: Error expected, None without a fault.
        kind: Kind of the parameter's tensor.
        interval: Steps between checks.
    """

    stage: int
    rank: int | None
    parameter: str
    error: str | None
    kind: str = WEIGHT
    interval: int = 1


FAULTS = {
    "none": Fault(0, None, REPLICATED, None),
    "stage 0": Fault(0, 3, SHARDED, f"{SHARDED} differs between ranks 1, 3"),
    "stage 0, before a save": Fault(
        0, 3, REPLICATED, f"{REPLICATED} on rank 3 is not what the other 3 ranks have", interval=NEVER
    ),
    LATER: Fault(0, 3, SHARDED, f"{SHARDED} differs between ranks 1, 3"),
    "stage 3, moment": Fault(3, 2, REPLICATED, f"{REPLICATED} differs between ranks 2-3, and 1 other tensor", kind="exp_avg"),
}


def test_ranks_that_differ_are_named() -> None:
    """A minority of ranks is named, in the plural if there are several, from checksums as ranks receive them."""
    key = TensorKey(WEIGHT, REPLICATED)
    checksums_of_ranks = [decode(encode({key: checksum})) for checksum in (5, 6, 5, 7, 5)]
    (sentence,) = describe_differences(checksums_of_ranks)
    assert sentence == f"{REPLICATED} on ranks 1, 3 is not what the other 3 ranks have"


@pytest.mark.slow
def test_differing_replicas_are_found(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"] |= {"steps": 2}
    raw_config["parallel"] = {"tp": 2}
    results = run_workers("tests.zero.state.test_replica_check:train_with_faults", 4, raw_config, tmp_path / "workers")
    for errors in results:  # all ranks end with the same error
        for name, fault in FAULTS.items():
            error = errors[name]
            if fault.error is None:
                assert error is None, name
                continue
            assert fault.error in error, name
            suspects_code = name != LATER
            assert (FIRST in error) == suspects_code, (name, error)
    for name, fault in FAULTS.items():
        checkpoints = list((tmp_path / "run" / name).glob("checkpoints/*"))
        assert bool(checkpoints) == (fault.error is None), name


def train_with_faults(raw: dict[str, Any], topology: Topology) -> dict[str, str | None]:
    """Train two steps with each fault. Return the error that ends each run, or None if none does."""
    return {name: _train(raw, topology, name) for name in FAULTS}


def _train(raw: dict[str, Any], topology: Topology, name: str) -> str | None:
    fault = FAULTS[name]
    changes = {
        "zero": {"stage": fault.stage},
        "run": {"directory": f"{raw['run']['directory']}/{name}"},
        "training": raw["training"] | {"replica_check_interval": fault.interval},
    }
    config = parse_config(raw | changes, name)
    print(f"case {name}", flush=True)
    run = build_trainer(config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease))
    if name == LATER:
        run.engine.check_replicas()
    if topology.rank == fault.rank:
        values = run.engine.state.piece(fault.parameter, fault.kind).values
        changed = values * 1.5
        if fault.kind != WEIGHT:
            changed += 1  # moments start at zero
        values.copy_(changed)
    try:
        run.train()
    except TrainingDiverged as error:
        return str(error)
    return None
