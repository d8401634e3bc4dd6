"""Dropping positions after pretraining (DroPE): a run with `rope`, and one with `nope` starting from its weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.run_folder import RunFolder
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import assert_identical, read_entries, tensors

CONFIG = Path(__file__).parents[2] / "configs/long/nope_155m_drope.json"


def settings_of_the_recipe() -> dict[str, Any]:
    """Return what the shipped configuration changes about a run, as settings of a case."""
    recipe = json.loads(CONFIG.read_text())
    settings = {"model.encoding": recipe["model"]["encoding"]}
    for name, value in recipe["schedule"].items():
        settings[f"schedule.{name}"] = value
    return settings


@pytest.mark.slow
def test_a_model_trains_on_without_its_positions(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Step 0 has the weights from `rope`, only dropping positions. Recalibrating then lowers the loss."""
    runs = Path(raw_config["run"]["directory"])
    raw_config["training"]["steps"] = 20
    raw_config["checkpoint"] = {"interval": 20, "keep": 5}
    pretrained = RunFolder(runs / "rope").checkpoint(20)
    dropped = settings_of_the_recipe() | {"training.init_from": str(pretrained), "training.steps": 10}

    results = run_cases(raw_config, [{"name": "rope", "set": {"model.encoding": "rope"}}], 1, tmp_path / "pretraining")
    assert_no_errors(results)
    cases: list[dict[str, Any]] = [{"name": "start", "set": dropped, "only_save": True}, {"name": "dropped", "set": dropped}]
    results = run_cases(raw_config, cases, 1, tmp_path / "recalibration")
    assert_no_errors(results)

    start = tensors(RunFolder(runs / "start").checkpoint(0), "weight")
    assert_identical(start, tensors(pretrained, "weight"), "weights of step 0")
    losses = [entry["loss"] for entry in read_entries(runs / "dropped" / "metrics.jsonl")]
    assert losses[-1] < losses[0]
