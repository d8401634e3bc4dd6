"""Runs that replay the forward and backward pass equal runs that compute both each time, bit for bit.

A recorder for CPUs stands in for CUDA graphs.
"""

from pathlib import Path
from typing import Any

from megatape.run_folder import RunFolder
from megatape.training.callbacks.profile import WARM_UP
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import comparable_metrics, verified_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

STEPS = WARM_UP + 3
SAVED_STEP = 2

REPLAYED = {"training.cuda_graphs": True}


def test_replayed_runs_are_the_same(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The run has several micro-batches a step and evaluations. It is also profiled, and resumed from a checkpoint."""
    raw_config["training"] |= {"steps": STEPS, "micro_batch_size": 2, "precision": "bfloat16"}
    raw_config["zero"] = {"stage": 2}
    raw_config["evaluation"] |= {"interval": 2}
    raw_config["checkpoint"] = {"interval": SAVED_STEP}
    root = Path(raw_config["run"]["directory"])
    saved = RunFolder(root / "replayed").checkpoint(SAVED_STEP)
    cases = [
        {"name": "computed"},
        {"name": "replayed", "set": REPLAYED, "recorded": True},
        {"name": "profiled", "set": REPLAYED, "recorded": True, "profile": 1},
        {"name": "resumed", "set": REPLAYED, "recorded": True, "resume": str(saved)},
    ]
    results = run_workers(TRAIN_CASES, 1, {"config": raw_config, "cases": cases}, tmp_path / "workers")

    assert [result["step"] for result in results[0]] == [0, 0, 0, SAVED_STEP]
    computed = RunFolder(root / "computed")
    metrics = comparable_metrics(computed)
    tensors = verified_tensors(computed.checkpoint(STEPS))
    for name in ("replayed", "profiled", "resumed"):
        folder = RunFolder(root / name)
        metrics_of_case = comparable_metrics(folder)
        assert metrics_of_case == metrics[-len(metrics_of_case) :], name
        tensors_of_case = verified_tensors(folder.checkpoint(STEPS))
        assert tensors_of_case.keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert tensors_of_case[key].equal(tensor), (name, key)
    console = (tmp_path / "workers" / "rank0.log").read_text()
    assert console.count("tokens per step, as CUDA graphs;") == 3
    # Module hooks opening these ranges are called in the profiled step.
    assert "attention backward" in console
