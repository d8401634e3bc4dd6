"""A run with LoRA adapters and dropout: the same on any topology, and what it starts from."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

TARGETS = ["query", "key", "value", "output", "gate", "up", "down"]
# Of four ranks, two divide the model. Dropout is drawn again where activations are recomputed, and for other micro-batches.
DIVIDED: dict[str, dict[str, Any]] = {
    "stage0": {"zero.stage": 0, "training.activation_checkpointing": "full"},
    "stage1": {"zero.stage": 1, "training.micro_batch_size": 4},
    "stage2": {"zero.stage": 2, "training.activation_checkpointing": "selective"},
    "stage3": {"zero.stage": 3, "training.activation_checkpointing": "full"},
}


@pytest.mark.slow
def test_same_on_every_topology(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Three steps with dropout, two tensor-parallel ranks and every stage equal those of one process; only adapters change."""
    raw_config["model"]["lora"] = {"rank": 3, "alpha": 6.0, "dropout": 0.3, "targets": TARGETS}
    raw_config["training"] |= {"steps": 3, "micro_batch_size": 2, "trainable": ["adapters"]}
    raw_config["optimizer"]["eps"] = 1e-3  # as in test_stages.py
    raw_config["checkpoint"] = {"interval": 1, "keep": 4}
    raw_config["evaluation"]["interval"] = 100
    folder = Path(raw_config["run"]["directory"])
    plain = [{"name": "plain", "set": {"zero.stage": 0}}]
    divided = [{"name": name, "set": changes | {"parallel.tp": 2}} for name, changes in DIVIDED.items()]
    for world_size, cases in ((1, plain), (4, divided)):
        results = run_workers(
            TRAIN_CASES, world_size, {"config": raw_config, "cases": cases}, tmp_path / f"workers-{world_size}"
        )
        assert [result.get("error") for result in results[0]] == [None] * len(cases)

    first, last = (tensors(folder / "plain" / f"checkpoints/step-0000000{step}", "weight") for step in (1, 3))
    changed = {name for name, tensor in last.items() if not torch.equal(tensor, first[name])}
    assert changed == {name for name in last if ".adapter." in name} and len(changed) == 2 * 2 * len(TARGETS)
    for name in DIVIDED:
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            expected, found = (tensors(folder / run / "checkpoints/step-00000003", kind) for run in ("plain", name))
            assert expected.keys() == found.keys()
            for parameter, tensor in expected.items():
                assert_close(found[parameter], tensor, bounds.TRAINED, floor=1e-12, what=(name, kind, parameter))
