"""Training with CUDA graphs on a GPU."""

from pathlib import Path
from typing import Any

import pytest

from megatape.run_folder import RunFolder
from tests.gpu import GPU
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import losses, verified_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

pytestmark = GPU


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_replayed_runs_are_the_same(raw_config: dict[str, Any], tmp_path: Path, stage: int, compiled: bool) -> None:
    """The runs avoid kernels that add in another order each time."""
    raw_config["training"] |= {"precision": "bfloat16", "micro_batch_size": 2, "compile": compiled, "deterministic": True}
    raw_config["zero"] = {"stage": stage}
    cases = [
        {"name": "computed"},
        {"name": "replayed", "set": {"training.cuda_graphs": True}},
    ]
    results = run_workers(TRAIN_CASES, 1, {"config": raw_config, "cases": cases}, tmp_path / "workers")

    assert results[0] == [{"step": 0, "samples": 0}] * 2
    root = Path(raw_config["run"]["directory"])
    assert losses(root / "replayed") == losses(root / "computed")
    steps = raw_config["training"]["steps"]
    expected = verified_tensors(RunFolder(root / "computed").checkpoint(steps))
    for name, tensor in verified_tensors(RunFolder(root / "replayed").checkpoint(steps)).items():
        assert tensor.equal(expected[name]), name
