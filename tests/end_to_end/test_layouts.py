"""In any layout, losses, gradient norms, weights, their average and the optimizer's state equal those of one process.

Runs have three steps. By default each setting is tried once, and with `-m slow` each pair of settings. All combinations take
hours:

    MEGATAPE_ALL_LAYOUTS=1 python -m pytest tests/end_to_end/test_layouts.py -m slow
"""

import os
import shutil
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from megatape.checkpoint.format.manifest import load_manifest
from megatape.run_folder import RunFolder
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.checks.covering import Row, covering_array, full_product
from tests.helpers.runs.case_runs import run_cases
from tests.helpers.runs.run_folders import assert_all_close, read_entries, step_tensors

pytestmark = pytest.mark.numerics

BATCH = 16
STEPS = 3
AT_A_TIME = 60  # layouts whose checkpoints are on disk

# Mesh axes set by a configuration key. The other ranks are data-parallel.
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
# Settings shared by a plain run and its layouts. No number of ranks divides the vocabulary.
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
# Settings for a layout, not for its plain run. 5 divides no rank's number of tokens.
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "chunks": {"training.activation_checkpointing": "offload", "training.chunk_tokens": 5},
    "kept": {},
}
FACTORS: dict[str, tuple[str, ...]] = {
    # One encoding of each kind
    "encoding": ("tape", "rope", "alibi", "fox", "path", "tape_fox", "tape_selective_rope"),
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
    """Return the case for a layout, as workers take it."""
    mesh = MESHES[row["mesh"]]
    settings = MODELS[row["model"]] | STAGES[row["stage"]] | OPTIMIZERS[row["optimizer"]] | ACTIVATIONS[row["activations"]]
    if row["model"] == "lora":
        # LoRA's dropout does not support chunks.
        settings.pop("training.chunk_tokens", None)
    for axis, key in AXES.items():
        settings[key] = mesh.get(axis, 1)
    settings["model.encoding"] = row["encoding"]
    settings["data.mask_documents"] = row["documents"] == "masked"
    settings["training.micro_batch_size"] = BATCH // (mesh.get("data", 1) * int(row["accumulation"]))
    return {"name": name_of(row), "set": settings}


@pytest.fixture
def config(raw_config: dict[str, Any]) -> dict[str, Any]:
    raw_config["model"]["vocab_size"] = 301
    raw_config["training"] |= {"steps": STEPS, "global_batch_size": BATCH}
    # Dividing by the root of the second moment, AdamW turns rounding in a gradient near zero into a whole step.
    raw_config["optimizer"] |= {"eps": 1e-3, "ema_decay": 0.5}
    return raw_config


def test_each_setting(config: dict[str, Any], tmp_path: Path) -> None:
    """Fails if a replicated parameter's gradient is not summed over tensor-parallel ranks."""
    check(config, covering_array(FACTORS, 1), tmp_path)


def test_layers_of_a_pattern_on_ranks_of_a_sample(config: dict[str, Any], tmp_path: Path) -> None:
    """Fails if ranks exchange the state for layers that do not read it, or if a window counts a rank's own tokens.

    Windows are shorter and longer than a rank's tokens, and documents end within them.
    """
    shared: dict[str, Any] = {
        "model.num_layers": 4,
        "model.layers": "tape@9, rope@5, tape, nope@30",
        "model.num_kv_heads": 4,
        "data.mask_documents": True,
        "training.micro_batch_size": BATCH,
    }
    layouts = {"tensor": {"parallel.tp": 2}, "sequence": {"parallel.sp": 2}, "context": {"parallel.cp": 2}}
    cases = [{"name": name, "set": shared | ranks} for name, ranks in layouts.items()]
    (plain,) = run_cases(config, [{"name": "plain", "set": shared}], 1, tmp_path / "plain", timeout=900)
    results = run_cases(config, cases, 2, tmp_path / "workers", timeout=900)
    assert "error" not in plain
    assert [result.get("error") for result in results] == [None] * len(cases)
    runs = Path(config["run"]["directory"])
    for name in layouts:
        compare(runs / "plain", runs / name, bounds.LAYOUTS)


@pytest.mark.slow
def test_each_pair(config: dict[str, Any], tmp_path: Path) -> None:
    """Fails if Muon orthogonalizes a rank's part of a matrix, or each micro-batch, or if clipping divides its update."""
    rows = covering_array(FACTORS, 2)
    if os.environ.get("MEGATAPE_ALL_LAYOUTS"):
        rows = list(full_product(FACTORS))
    for first in range(0, len(rows), AT_A_TIME):
        check(config, rows[first : first + AT_A_TIME], tmp_path)
        shutil.rmtree(config["run"]["directory"])


def check(config: dict[str, Any], rows: Iterable[Row], folder: Path) -> None:
    """Train all layouts, comparing each with its plain run."""
    pairs = [(row, row | ONE_PROCESS) for row in rows]
    needed: dict[str, Row] = {}
    for row, plain in pairs:
        needed[name_of(row)] = row
        needed[name_of(plain)] = plain
    for size in sorted({num_ranks(row) for row in needed.values()}):
        cases = [case_of(row) for row in needed.values() if num_ranks(row) == size]
        results = run_cases(config, cases, size, folder / f"workers-{size}", timeout=900)
        errors = {}
        for case, result in zip(cases, results, strict=True):
            if "error" in result:
                errors[case["name"]] = result["error"]
        assert errors == {}
    runs = Path(config["run"]["directory"])
    for row, plain in pairs:
        compare(runs / name_of(plain), runs / name_of(row), bound_of(row))


def bound_of(row: Row) -> bounds.Bound:
    if row["optimizer"] != "adamw":
        return bounds.LAYOUTS_MUON
    if row["encoding"] == "path":
        return bounds.LAYOUTS_PATH
    return bounds.LAYOUTS


def compare(plain: Path, run: Path, bound: bounds.Bound) -> None:
    """Compare a run's losses, gradient norms and tensors with a plain one's."""
    entries = read_entries(run / "metrics.jsonl")
    expected_entries = read_entries(plain / "metrics.jsonl")
    assert len(entries) == STEPS
    for entry, expected in zip(entries, expected_entries, strict=True):
        for field in ("loss", "grad_norm"):
            assert_close([entry[field]], [expected[field]], bound, what=(run, entry["step"], field))
    kinds = load_manifest(RunFolder(plain).checkpoint(STEPS)).tensors.keys()
    assert {"weight", "ema", "exp_avg"} <= kinds
    for kind in kinds:
        assert_all_close(step_tensors(run, kind, STEPS), step_tensors(plain, kind, STEPS), bound, (run, kind))
