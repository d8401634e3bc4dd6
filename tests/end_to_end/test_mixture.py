"""Runs on mixtures: what they tell of each corpus, and which changes of the weights a resumed run may make."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.schedule import Phase, Schedule
from megatape.data.training.token_dataset import TokenDataset
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES


@pytest.fixture
def mixed(raw_config: dict[str, Any], data_directory: Path) -> dict[str, Any]:
    """The usual data twice, once with a third of the weight."""
    del raw_config["data"]["path"]
    raw_config["data"]["mixture"] = {
        "rare": {"path": str(data_directory), "weight": 0.5, "max_epochs": 1},
        "often": {"path": str(data_directory), "weight": 1},
    }
    raw_config["evaluation"]["interval"] = 2
    return raw_config


def test_a_run_on_a_mixture(mixed: dict[str, Any], data_directory: Path, tmp_path: Path) -> None:
    later = [{"tokens": 8 * 4 * 32, "weights": {"rare": 1, "often": 0}}]
    weights = {name: corpus | {"weight": 1} for name, corpus in mixed["data"]["mixture"].items()}
    checkpoint = str(Path(mixed["run"]["directory"]) / "mixed" / "checkpoints" / "step-00000004")
    more = {"name": "more", "resume": checkpoint, "set": {"training.steps": 6, "data.annealing": later}}
    refused = more | {"name": "refused"}
    cases = [
        {"name": "mixed"},
        more,
        refused | {"set": {"data.mixture": weights}},
        refused | {"set": {"data.annealing": [later[0] | {"tokens": 8 * 4 * 32 - 1}]}},
        refused | {"set": {"training.steps": 10**4}},
    ]
    results = run_workers(TRAIN_CASES, 2, {"config": mixed, "cases": cases}, tmp_path / "workers")[0]
    assert results[:2] == [{"step": 0, "samples": 0}, {"step": 4, "samples": 32}]
    assert "trained with data.mixture.rare.weight 0.5, the configuration says 1" in results[2]["error"]
    assert "has seen 1,024 tokens with these changes of the weights: none; data.annealing says" in results[3]["error"]
    samples = TokenDataset(StoredSplit(data_directory, "train"), 32).num_samples
    assert f"epochs of its {samples:,}, and max_epochs is 1, which ends in step" in results[4]["error"]

    run = Path(mixed["run"]["directory"])
    entries = [
        json.loads(line) for name in ("mixed", "more") for line in (run / name / "metrics.jsonl").read_text().splitlines()
    ]
    schedule = Schedule([Phase(0, [2, 1]), Phase(32, [0, 1])])
    counts = [dict(zip(("often", "rare"), schedule.counts(8 * step), strict=True)) for step in range(1, 7)]
    assert [entry["corpora"] for entry in entries] == counts
    for entry in entries:
        assert ("validation_losses" in entry) == (entry["step"] % 2 == 0)
        if losses := entry.get("validation_losses"):  # of the same text
            assert list(losses) == ["often", "rare"]
            assert list(losses.values()) == pytest.approx([entry["validation_loss"]] * 2, rel=1e-6)
    console = (tmp_path / "workers" / "rank0.log").read_text()
    assert "validation loss" in console and "often" in console
