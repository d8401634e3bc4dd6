"""Every ZeRO stage, number of ranks and accumulation trains the same model as one plain process."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from tests.workers import run_workers

# Each pair of options meets somewhere; "plain" is stage 0 on one process, without any of them.
OPTIONS: dict[str, dict[str, Any]] = {
    "gqa": {"model.num_kv_heads": 2, "zero.sub_group_size": 3000},
    "tied": {"model.tie_embeddings": True, "training.activation_checkpointing": True},
    "masked": {"data.mask_documents": True, "zero.bucket_size": 5000},
    "rope": {"model.encoding": "rope", "training.micro_batch_size": 4},
}
VARIANTS = {
    "stage1": {"zero.stage": 1},
    "stage2": {"zero.stage": 2},
    "stage2_offload": {"zero.stage": 2, "zero.offload_optimizer": True},
    "stage3": {"zero.stage": 3},
    "stage3_offload": {"zero.stage": 3, "zero.offload_optimizer": True, "zero.offload_parameters": True},
}

# Float32 sums in another order (micro-batches, ranks, flat buffers) differ by some 1e-7 of their size. Adam divides by the root of the
# second moment and so turns the rounding of a gradient near zero into a whole step; a large eps (below) keeps its update smooth, and
# what remains after three steps is the rounding of three backward passes. A lost gradient or a wrong scale shows as 1e-1.
EPS = 1e-3
TOLERANCE = 2e-6  # relative to the largest element; seen: 5e-7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.mark.parametrize("world_size", [1, 2])
def test_equal_to_plain(raw_config: dict[str, Any], folder: Path, world_size: int) -> None:
    raw_config["run"]["directory"] = str(folder / f"world{world_size}")
    raw_config["training"]["steps"] = 3
    raw_config["optimizer"]["eps"] = EPS
    cases = [{"name": option, "set": changes | {"zero.stage": 0}} for option, changes in OPTIONS.items()]
    variants = list(VARIANTS)
    for index, (option, changes) in enumerate(OPTIONS.items()):
        # Stages 1 to 3 for every option; each offload for two of them.
        chosen = ["stage1", "stage2", "stage3", variants[2 + 2 * (index % 2)]]
        cases += [{"name": f"{option}-{name}", "set": changes | VARIANTS[name]} for name in chosen]
    run_workers(
        "tests.training.cases:train_cases", world_size, {"config": raw_config, "cases": cases}, folder / f"w{world_size}"
    )

    for case in cases:
        option = case["name"].partition("-")[0]
        plain, this = folder / "world1" / option, folder / f"world{world_size}" / case["name"]
        for expected, found in zip(_metrics(plain), _metrics(this), strict=True):
            for field in ("loss", "grad_norm"):
                assert found[field] == pytest.approx(expected[field], rel=TOLERANCE), (case, found["step"], field)
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            ours, theirs = _tensors(this, kind), _tensors(plain, kind)
            assert ours.keys() == theirs.keys()
            for name, tensor in theirs.items():
                difference = float((ours[name] - tensor).abs().max() / tensor.abs().max().clamp(min=1e-12))
                assert difference < TOLERANCE, (case, kind, name, difference)


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _tensors(run: Path, kind: str) -> dict[str, Tensor]:
    return load_file(run / "checkpoints" / "step-00000003" / f"{kind}-00000.safetensors")
