"""Runs whose samples are whole documents with targets behind a prompt: the same on any ranks, and resumed exactly."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.data.synthetic.addition_problems import AdditionTask, prepare_addition
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES


@pytest.fixture
def config(raw_config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Two-digit addition: 6 steps with a checkpoint at 3."""
    prepare_addition(AdditionTask(2, 30, 0), tmp_path / "data", lambda tokens: None)
    raw_config["data"] = {"path": str(tmp_path / "data"), "sequence_length": 12, "samples": "documents", "prompt_end": "="}
    raw_config["training"]["steps"] = 6
    raw_config["checkpoint"] = {"interval": 3, "keep": 3}
    raw_config["optimizer"]["eps"] = 1e-3  # as in test_stages.py
    return raw_config


def losses(config: dict[str, Any], name: str) -> list[float]:
    lines = (Path(config["run"]["directory"]) / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
def test_ranks_and_resuming(config: dict[str, Any], tmp_path: Path) -> None:
    root = Path(config["run"]["directory"])
    run_workers(TRAIN_CASES, 1, {"config": config, "cases": [{"name": "one", "set": {"zero.stage": 0}}]}, tmp_path / "w1")
    half = str(root / "one" / "checkpoints" / "step-00000003")
    cases = [
        {"name": "data"},
        {"name": "tensor", "set": {"parallel.tp": 2}},
        {"name": "resumed", "resume": half},
        {"name": "other end", "set": {"data.prompt_end": "+"}, "resume": half},
        {"name": "whole", "set": {"data.prompt_end": "2"}},
        {"name": "packed", "set": {"data.samples": "packed", "data.prompt_end": None}, "resume": half},
    ]
    results = run_workers(TRAIN_CASES, 2, {"config": config, "cases": cases}, tmp_path / "w2")[0]
    straight = losses(config, "one")
    for name in ("data", "tensor"):
        assert_close(losses(config, name), straight, bounds.TRAINED, what=name)
    assert results[2] == {"step": 3, "samples": 24}
    assert_close(losses(config, "resumed"), straight[3:], bounds.TRAINED)
    assert "data.prompt_end =, the configuration says +" in results[3]["error"]
    assert "without the data.prompt_end '2'" in results[4]["error"]
    assert "data.samples documents, the configuration says packed" in results[5]["error"]
