"""Training on a GPU with DeepSpeed."""

from pathlib import Path
from typing import Any

from tests.gpu import GPU
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES

pytestmark = GPU


def test_trains_and_resumes(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """ZeRO stage 3 in bfloat16."""
    raw_config["training"] |= {"precision": "bfloat16"}
    cases = [{"name": "gpu"}, {"name": "gpu", "resume": "auto", "set": {"training.steps": 6}}]
    results = run_workers(TRAIN_CASES, 1, {"config": raw_config, "cases": cases}, tmp_path / "workers")
    assert results[0] == [{"step": 0, "samples": 0}, {"step": 4, "samples": 32}]
