"""Any layout, the same run: losses, gradient norms, weights, their average and the optimizer's state after three steps equal
those of one plain process.

By default each setting is tried once, with `-m slow` each pair of settings meets, and this tries all combinations, in hours:

    MEGATAPE_ALL_LAYOUTS=1 python -m pytest tests/end_to_end/test_layouts.py -m slow
"""

import json
import os
import shutil
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from megatape.checkpoint.manifest import load_manifest
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.checks.covering import Row, covering_array, full_product
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

pytestmark = pytest.mark.numerics

BATCH = 16
STEPS = 3
AT_A_TIME = 60  # layouts whose checkpoints are on disk

# The axes of the mesh that a key of the configuration sets; ranks beyond their product divide the data.
AXES = {"sequence": "parallel.sp", "tensor": "parallel.tp"}
MESHES: dict[str, dict[str, int]] = {
    "one": {},
    "data2": {"data": 2},
    "data4": {"data": 4},
    "tensor2": {"tensor": 2},
    "tensor4": {"tensor": 4},
    "data2-tensor2": {"data": 2, "tensor": 2},
    "data2-sequence2": {"data": 2, "sequence": 2},
    "sequence2-tensor2": {"sequence": 2, "tensor": 2},
}
# What a plain run shares with its layouts. No number of ranks divides the vocabulary.
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"data.sequence_length": 28},
    "grouped": {"model.num_kv_heads": 4, "model.attention_bias": "qkvo", "model.qk_norm": True, "zero.sub_group_size": 3000},
    "tied": {
        "model.tie_embeddings": True,
        "training.activation_checkpointing": "full",
        "training.z_loss": 1e-3,
        "model.logit_softcap": 5.0,
    },
    "interleaved": {"model.num_layers": 3, "model.nope_every": 2},
    "log_n": {"model.attention_scale": "log_n", "model.num_kv_heads": 4},
    "frozen": {"training.frozen": ["blocks.0.attention.*", "embeddings"], "zero.bucket_size": 5000},
    "lora": {
        "model.lora": {"rank": 4, "alpha": 8.0, "dropout": 0.1, "targets": ["query", "output", "up", "down"]},
        "training.trainable": ["adapters", "norms"],
    },
}
STAGES: dict[str, dict[str, Any]] = {f"stage{stage}": {"zero.stage": stage} for stage in range(4)} | {
    "stage2-offload": {"zero.stage": 2, "zero.offload_optimizer": True},
    "stage3-offload": {"zero.stage": 3, "zero.offload_optimizer": True, "zero.offload_parameters": True},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "muon": {"optimizer.kind": "muon"},
    "muon-positions": {"optimizer.kind": "muon", "optimizer.orthogonalized": ["matrix", "position"]},
}
# Of a layout, and not of the plain run that it is compared with. 5 divides the tokens of no rank.
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "chunks": {"training.activation_checkpointing": "offload", "training.chunk_tokens": 5},
    "kept": {},
}
FACTORS: dict[str, tuple[str, ...]] = {
    "encoding": ("tape", "rope", "alibi", "fox", "path", "tape_fox", "tape_selective_rope"),  # one of each kind
    "optimizer": tuple(OPTIMIZERS),
    "documents": ("packed", "masked"),
    "model": tuple(MODELS),
    "mesh": tuple(MESHES),
    "stage": tuple(STAGES),
    "accumulation": ("1", "4"),
    "activations": tuple(ACTIVATIONS),
}
ONE_PROCESS = {"mesh": "one", "stage": "stage0", "accumulation": "1", "activations": "kept"}


def num_ranks(row: Row) -> int:
    return prod(MESHES[row["mesh"]].values())


def name_of(row: Row) -> str:
    return "/".join(row.values())


def case_of(row: Row) -> dict[str, Any]:
    """The run of a layout, as workers take it."""
    mesh = MESHES[row["mesh"]]
    activations = ACTIVATIONS[row["activations"]]
    if row["model"] == "lora":  # whose dropout takes no chunks
        activations = {key: value for key, value in activations.items() if key != "training.chunk_tokens"}
    return {
        "name": name_of(row),
        "set": MODELS[row["model"]]
        | STAGES[row["stage"]]
        | OPTIMIZERS[row["optimizer"]]
        | activations
        | {key: mesh.get(axis, 1) for axis, key in AXES.items()}
        | {
            "model.encoding": row["encoding"],
            "data.mask_documents": row["documents"] == "masked",
            "training.micro_batch_size": BATCH // (mesh.get("data", 1) * int(row["accumulation"])),
        },
    }


@pytest.fixture
def config(raw_config: dict[str, Any]) -> dict[str, Any]:
    raw_config["model"]["vocab_size"] = 301
    raw_config["training"] |= {"steps": STEPS, "global_batch_size": BATCH}
    # AdamW divides by the root of the second moment, and so turns the rounding of a gradient near zero into a whole step.
    raw_config["optimizer"] |= {"eps": 1e-3, "ema_decay": 0.5}
    return raw_config


def test_each_setting(config: dict[str, Any], tmp_path: Path) -> None:
    """It fails if a replicated parameter's gradient is not summed over tensor-parallel ranks."""
    check(config, covering_array(FACTORS, 1), tmp_path)


@pytest.mark.slow
def test_each_pair(config: dict[str, Any], tmp_path: Path) -> None:
    """It fails if Muon orthogonalizes a rank's part of a matrix, or each micro-batch, or if clipping divides its update."""
    rows = list(full_product(FACTORS)) if os.environ.get("MEGATAPE_ALL_LAYOUTS") else covering_array(FACTORS, 2)
    for first in range(0, len(rows), AT_A_TIME):
        check(config, rows[first : first + AT_A_TIME], tmp_path)
        shutil.rmtree(config["run"]["directory"])


def check(config: dict[str, Any], rows: Iterable[Row], folder: Path) -> None:
    """Train all of the layouts, and each one's plain run, and compare them."""
    pairs = [(row, row | ONE_PROCESS) for row in rows]
    needed = {name_of(row): row for pair in pairs for row in pair}.values()
    for ranks in sorted(set(map(num_ranks, needed))):
        cases = [case_of(row) for row in needed if num_ranks(row) == ranks]
        results = run_workers(TRAIN_CASES, ranks, {"config": config, "cases": cases}, folder / f"workers-{ranks}", 900)[0]
        assert {case["name"]: result["error"] for case, result in zip(cases, results, strict=True) if "error" in result} == {}
    runs = Path(config["run"]["directory"])
    for row, plain in pairs:
        bound = bounds.LAYOUTS_PATH if row["encoding"] == "path" else bounds.LAYOUTS
        if row["optimizer"] != "adamw":
            bound = bounds.LAYOUTS_MUON
        compare(runs / name_of(plain), runs / name_of(row), bound)


def compare(plain: Path, this: Path, bound: bounds.Bound) -> None:
    """Hold a run to a plain one."""
    ours, theirs = ([json.loads(line) for line in (run / "metrics.jsonl").open()] for run in (this, plain))
    assert len(ours) == STEPS
    for found, expected in zip(ours, theirs, strict=True):
        for field in ("loss", "grad_norm"):
            assert_close([found[field]], [expected[field]], bound, what=(this, found["step"], field))
    kinds = load_manifest(plain / "checkpoints" / f"step-{STEPS:08d}").tensors.keys()
    assert {"weight", "ema", "exp_avg"} <= kinds
    for kind in kinds:
        found = step_tensors(this, kind, STEPS)
        expected = step_tensors(plain, kind, STEPS)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert_close(found[name], tensor, bound, floor=1e-12, what=(this, kind, name))
