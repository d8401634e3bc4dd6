"""A run with LoRA adapters and dropout: the same on any topology, and what it starts from."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.checks import bounds
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import KINDS, assert_all_close, step_tensors

TARGETS = ["query", "key", "value", "output", "gate", "up", "down"]
# Every two ranks share a model. Dropout is drawn again when recomputing activations, and for other micro-batches.
SHARDED: dict[str, dict[str, Any]] = {
    "stage0": {"zero.stage": 0, "training.activation_checkpointing": "full"},
    "stage1": {"zero.stage": 1, "training.micro_batch_size": 4},
    "stage2": {"zero.stage": 2, "training.activation_checkpointing": "selective"},
    "stage3": {"zero.stage": 3, "training.activation_checkpointing": "full"},
}


@pytest.mark.slow
def test_same_on_every_topology(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Steps with dropout, two tensor-parallel ranks and every stage equal those in one process, changing adapters only."""
    raw_config["model"]["lora"] = {"rank": 3, "alpha": 6.0, "dropout": 0.3, "targets": TARGETS}
    raw_config["training"] |= {"steps": 3, "micro_batch_size": 2, "trainable": ["adapters"]}
    # A large eps keeps Adam's updates smooth (see test_stages.py).
    raw_config["optimizer"]["eps"] = 1e-3
    raw_config["checkpoint"] = {"interval": 1, "keep": 4}
    raw_config["evaluation"]["interval"] = 100
    plain = [{"name": "plain", "set": {"zero.stage": 0}}]
    sharded = [{"name": name, "set": changes | {"parallel.tp": 2}} for name, changes in SHARDED.items()]

    assert_no_errors(run_cases(raw_config, plain, 1, tmp_path / "workers-1"))
    assert_no_errors(run_cases(raw_config, sharded, 4, tmp_path / "workers-4"))

    root = Path(raw_config["run"]["directory"])
    check_changed_weights(root / "plain")
    for name in SHARDED:
        for kind in KINDS:
            expected = step_tensors(root / "plain", kind, step=3)
            assert_all_close(step_tensors(root / name, kind, step=3), expected, bounds.TRAINED, (name, kind))


def check_changed_weights(run: Path) -> None:
    """Check that only adapters have changed between the first and the last step."""
    first = step_tensors(run, "weight", step=1)
    last = step_tensors(run, "weight", step=3)
    changed = {name for name, tensor in last.items() if not torch.equal(tensor, first[name])}
    assert changed == {name for name in last if ".adapter." in name}
    assert len(changed) == 2 * 2 * len(TARGETS)  # Matrices in an adapter, layers
