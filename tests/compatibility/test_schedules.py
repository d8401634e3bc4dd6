"""Checkpoints and configurations with schedules of earlier versions still work.

fixtures/schedules/ holds the checkpoint of step 4 of a run of 8 steps for each of them, its configuration and its metrics.
fixtures/schedules/made_by.py.txt is the script that made them.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import load_config, load_recorded_config, parse_config
from megatape.hf.exporting.exporter import export
from megatape.hf.loading.load import load_trained
from megatape.optim.learning_rate import LearningRate
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES

pytestmark = pytest.mark.numerics

FIXTURES = Path(__file__).parent / "fixtures"
SCHEDULES = FIXTURES / "schedules"
KINDS = ("cosine_restarts", "inverse_sqrt")


def checkpoint_of(kind: str) -> Path:
    return SCHEDULES / kind / "step-00000004"


def metrics_of(file: Path) -> dict[int, dict[str, Any]]:
    """Return the entries of metrics.jsonl by step."""
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    return {entry["step"]: entry for entry in entries}


@pytest.mark.parametrize("kind", KINDS)
def test_configurations_load(kind: str) -> None:
    """Earlier configurations load with all learning rates of their runs."""
    file = SCHEDULES / kind / "config.json"
    for config in (load_config(file), load_recorded_config(file), CheckpointReader(checkpoint_of(kind)).config):
        assert parse_config(config.model_dump(), "again") == config
        learning_rate = LearningRate.of_run(config)
        for step, entry in metrics_of(SCHEDULES / kind / "metrics.jsonl").items():
            assert learning_rate.of_step(step - 1) == entry["lr"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_exports_and_evaluates(kind: str, tmp_path: Path) -> None:
    export(CheckpointReader(checkpoint_of(kind)), tmp_path / "export")
    assert load_file(tmp_path / "export" / "model.safetensors")
    with load_trained(checkpoint_of(kind)) as loaded, torch.no_grad():
        assert loaded.model(input_ids=torch.arange(24)[None]).logits.isfinite().all()


def test_runs_resume(tmp_path: Path) -> None:
    """Each run resumes at step 4, and repeats learning rates and losses of its uninterrupted run."""
    raw = json.loads((SCHEDULES / KINDS[0] / "config.json").read_text())
    raw["data"]["path"] = str(FIXTURES / "data")
    raw["run"]["directory"] = str(tmp_path)
    del raw["schedule"]
    cases = []
    for kind in KINDS:
        schedule = json.loads((SCHEDULES / kind / "config.json").read_text())["schedule"]
        settings = {f"schedule.{key}": value for key, value in schedule.items()}
        cases.append({"name": kind, "resume": str(checkpoint_of(kind)), "set": settings})
    payload = {"config": raw, "cases": cases}
    (results,) = run_workers(TRAIN_CASES, 1, payload, tmp_path / "workers")
    assert results == [{"step": 4, "samples": 32}] * len(KINDS)
    for kind in KINDS:
        found = metrics_of(tmp_path / kind / "metrics.jsonl")
        expected = metrics_of(SCHEDULES / kind / "metrics.jsonl")
        assert list(found) == [5, 6, 7, 8]
        for step, entry in found.items():
            assert entry["lr"] == expected[step]["lr"]
            assert_close([entry["loss"]], [expected[step]["loss"]], bounds.TRAINED, what=(kind, step))


def test_a_new_run_is_refused(tmp_path: Path) -> None:
    """The error lists the schedules to choose instead."""
    raw = json.loads((SCHEDULES / KINDS[0] / "config.json").read_text())
    raw["data"]["path"] = str(FIXTURES / "data")
    raw["run"]["directory"] = str(tmp_path)
    payload = {"config": raw, "cases": [{"name": "new"}]}
    ((result,),) = run_workers(TRAIN_CASES, 1, payload, tmp_path / "workers")
    assert "schedule.kind cosine_restarts is only for resuming" in result["error"]
    assert result["error"].endswith("set it to wsd or cosine")
