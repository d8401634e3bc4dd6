"""Runs whose samples are whole documents with targets behind a prompt: the same on any ranks, and resumed exactly."""

from pathlib import Path
from typing import Any

import pytest

from megatape.data.synthetic.addition_problems import AdditionTask, prepare_addition
from megatape.run_folder import RunFolder
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import read_entries


@pytest.fixture
def config(raw_config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Return the configuration for two-digit addition: 6 steps with a checkpoint at 3."""
    prepare_addition(AdditionTask(2, 30, 0), tmp_path / "data", lambda tokens: None)
    raw_config["data"] = {"path": str(tmp_path / "data"), "sequence_length": 12, "samples": "documents", "prompt_end": "="}
    raw_config["training"]["steps"] = 6
    raw_config["checkpoint"] = {"interval": 3, "keep": 3}
    # A large eps keeps Adam's updates smooth (see test_stages.py).
    raw_config["optimizer"]["eps"] = 1e-3
    return raw_config


@pytest.mark.slow
def test_ranks_and_resuming(config: dict[str, Any], tmp_path: Path) -> None:
    root = Path(config["run"]["directory"])

    def losses(name: str) -> list[float]:
        return [entry["loss"] for entry in read_entries(root / name / "metrics.jsonl")]

    one_rank = {"name": "one rank", "set": {"zero.stage": 0}}
    assert_no_errors(run_cases(config, [one_rank], 1, tmp_path / "workers-1"))
    checkpoint = str(RunFolder(root / "one rank").checkpoint(3))
    trained: list[dict[str, Any]] = [
        {"name": "data"},
        {"name": "tensor", "set": {"parallel.tp": 2}},
        {"name": "resumed", "resume": checkpoint},
    ]
    packed = {"data.samples": "packed", "data.prompt_end": None}
    refused: list[dict[str, Any]] = [
        {"name": "other end", "set": {"data.prompt_end": "+"}, "resume": checkpoint},
        {"name": "missing end", "set": {"data.prompt_end": "2"}},
        {"name": "packed", "set": packed, "resume": checkpoint},
    ]

    results = run_cases(config, trained + refused, 2, tmp_path / "workers-2")

    assert_no_errors(results[:3])
    expected = losses("one rank")
    assert_close(losses("data"), expected, bounds.TRAINED, what="data")
    assert_close(losses("tensor"), expected, bounds.TRAINED, what="tensor")
    assert results[2] == {"step": 3, "samples": 24}
    assert_close(losses("resumed"), expected[3:], bounds.TRAINED, what="resumed")
    other_end, missing_end, packed_samples = (result["error"] for result in results[3:])
    assert "data.prompt_end =, the configuration says +" in other_end
    assert "without the data.prompt_end '2'" in missing_end
    assert "data.samples documents, the configuration says packed" in packed_samples
