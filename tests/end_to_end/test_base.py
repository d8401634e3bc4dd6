"""Runs whose checkpoints leave out the frozen weights that training.init_from holds."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from megatape.accounting.checkpoint_size import checkpoint_bytes
from megatape.checkpoint.hashed_files import hash_file
from megatape.checkpoint.reader import CheckpointReader, verified_checkpoint
from megatape.hf.exporting.exporter import export
from megatape.hf.importing.importer import import_model
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import WITH_TRANSFORMERS, run_workers
from tests.helpers.runs.run_folders import flip_byte, tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

STAGES: dict[str, dict[str, Any]] = {
    "stage0": {"zero.stage": 0},
    "stage2": {"zero.stage": 2, "training.precision": "bfloat16"},
    "stage3": {"zero.stage": 3},
    "bfloat16": {"zero.stage": 3, "training.precision": "bfloat16"},
}


def of_run(raw: dict[str, Any], run: str, step: int) -> Path:
    return Path(raw["run"]["directory"]) / run / "checkpoints" / f"step-{step:08d}"


@pytest.fixture
def tuning(trained: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The configuration of runs that train adapters and norms from a copy of a checkpoint, the test's own."""
    raw = copy.deepcopy(trained)
    origin = shutil.copytree(of_run(trained, "base", 4), tmp_path / "origin")
    raw["run"]["directory"] = str(tmp_path / "run")
    raw["training"]["steps"] = 3
    raw["checkpoint"] = {"interval": 1, "keep": 4}
    raw["model"]["lora"] = {"rank": 2, "alpha": 4.0, "dropout": 0.2}
    raw["training"] |= {"init_from": str(origin), "trainable": ["adapters", "norms"]}
    return raw


@pytest.mark.slow
def test_resuming(tuning: dict[str, Any], tmp_path: Path) -> None:
    """Runs go on bit for bit, on two data and two tensor-parallel ranks; and what one process wrote is read there."""
    tuning["checkpoint"]["interval"] = 2
    plain = {"name": "plain", "set": {"zero.stage": 0, "training.steps": 2}}
    run_workers(TRAIN_CASES, 1, {"config": tuning, "cases": [plain]}, tmp_path / "workers-1")
    cases: list[dict[str, Any]] = []
    for name, changes in STAGES.items():
        case = {"name": name, "set": changes | {"parallel.tp": 2}}
        cases += [case, case | {"name": f"{name}-resumed", "resume": str(of_run(tuning, name, 2))}]
        cases += [case | {"name": f"{name}-moved", "resume": str(of_run(tuning, "plain", 2)), "only_save": True}]
        cases[-1]["allow_changes"] = True  # of precision
    results = run_workers(TRAIN_CASES, 4, {"config": tuning, "cases": cases}, tmp_path / "workers-4")
    assert [result.get("error") for result in results[0]] == [None] * len(cases)

    origin = CheckpointReader(tmp_path / "origin")
    for name in STAGES:
        straight, resumed = (verified_checkpoint(of_run(tuning, run, 3)) for run in (name, f"{name}-resumed"))
        assert straight.manifest.features == ("base",)
        held = tensors(straight.directory, "weight")
        assert {key for key in held if ".adapter." not in key} == {key for key in straight.names() if "norm" in key}
        assert set(straight.names()) == held.keys() | set(origin.names())
        for key in straight.names():
            assert torch.equal(straight.tensor(key), (straight if key in held else origin).tensor(key)), (name, key)
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            expected = tensors(straight.directory, kind)
            found = tensors(resumed.directory, kind)
            assert expected.keys() == found.keys() == held.keys()
            assert all(torch.equal(found[key], value) for key, value in expected.items()), (name, kind)
            expected, found = (tensors(of_run(tuning, run, 2), kind) for run in ("plain", f"{name}-moved"))
            assert expected.keys() == found.keys()
            assert all(torch.equal(found[key], value) for key, value in expected.items()), (name, kind)


@pytest.mark.slow
def test_what_is_left_out(tuning: dict[str, Any], tmp_path: Path) -> None:
    """What the files of an import, an export, a checkpoint, or a checkpoint's own base hold, and nothing else."""
    origin = tmp_path / "origin"
    export(verified_checkpoint(origin), tmp_path / "exported")
    save_tiny("llama", tmp_path / "llama")
    import_model(tmp_path / "llama", tmp_path / "import", "tape", 32)
    imported = json.loads((tmp_path / "import" / "config.json").read_text())
    tape = {f"{section}.{key}": value for section in ("model", "export") for key, value in imported[section].items()}
    tape |= {"training.init_from": str(tmp_path / "import"), "training.trainable": ["norms"]}
    tape |= {"model.lora": None}
    first = str(of_run(tuning, "checkpoint", 0))
    cases: list[dict[str, Any]] = [
        {"name": "checkpoint"},
        {"name": "exported", "set": {"training.init_from": str(tmp_path / "exported")}},
        {"name": "imported", "set": tape},
        {"name": "chained", "set": {"training.init_from": first, "training.trainable": ["adapters"]}},
        {"name": "complete", "set": {"training.init_from": first, "training.trainable": ["*"]}},
        {"name": "new", "set": {"training.init_from": None}},
    ]
    results = run_workers(
        TRAIN_CASES,
        2,
        {"config": tuning, "cases": [case | {"only_save": True} for case in cases]},
        tmp_path / "w",
        imports=WITH_TRANSFORMERS,
    )
    assert [result.get("error") for result in results[0]] == [None] * len(cases)

    readers = {str(case["name"]): verified_checkpoint(of_run(tuning, str(case["name"]), 0)) for case in cases}
    bases = {name: reader.base for name, reader in readers.items()}
    folders = {name: base and base.directory for name, base in bases.items()}
    source = {"checkpoint": origin, "chained": origin, "exported": tmp_path / "exported", "imported": tmp_path / "llama"}
    assert folders == source | {"complete": None, "new": None}
    assert readers["complete"].manifest.format == readers["new"].manifest.format == 1
    for name in source:
        base = bases[name]
        held = readers[name].manifest.tensors["weight"]
        assert base and base.files == {file: hash_file(base.directory / file) for file in base.files}, name
        parts = ("norm", ".position." if name == "imported" else ".adapter.")
        assert held and all(any(part in key for part in parts) for key in held), name
        assert not any(part in key for part in parts for key in base.tensors), name
    for name in ("checkpoint", "complete", "exported", "new"):
        reader = readers[name]
        sizes = [tensor.numel() * 4 for kind in reader.manifest.tensors for tensor in tensors(reader.directory, kind).values()]
        recorded = reader.config
        planned = checkpoint_bytes(recorded.model, recorded.training, recorded.optimizer)
        assert planned == sum(sizes), name
    expected = readers["checkpoint"]
    for name in ("chained", "exported", "complete"):
        for key in expected.names():
            assert torch.equal(readers[name].tensor(key), expected.tensor(key)), (name, key)
    shutil.rmtree(expected.directory)
    assert torch.isfinite(verified_checkpoint(of_run(tuning, "chained", 0)).tensor("embedding.weight")).all()


@pytest.mark.slow
def test_other_bases_are_refused(tuning: dict[str, Any], trained: dict[str, Any], tmp_path: Path, command: Command) -> None:
    """Each with its reason, and no checkpoint is set aside for it. --base says where it is, in all commands."""
    root = Path(tuning["run"]["directory"])
    origin = tmp_path / "origin"
    run_workers(
        TRAIN_CASES, 2, {"config": tuning, "cases": [{"name": "run", "set": {"training.steps": 2}}]}, tmp_path / "workers"
    )
    checkpoint = of_run(tuning, "run", 2)
    merged = tmp_path / "merged"
    export(verified_checkpoint(checkpoint), merged)

    moved = origin.rename(tmp_path / "moved")
    shutil.copytree(moved, tmp_path / "changed")
    flip_byte(tmp_path / "changed" / "weight-00000.safetensors")
    shutil.copytree(moved, tmp_path / "short")
    weights = tmp_path / "short" / "weight-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    shutil.copytree(moved, tmp_path / "gone")
    complete = of_run(trained, "base", 4)
    plain = {"model.lora": None, "training.trainable": ["all"], "training.init_from": None}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, f"holds only what was trained. The rest is in its base {origin}, and there is no such folder"),
        ({"base": str(tmp_path / "none")}, f"--base {tmp_path / 'none'} is no such folder"),
        ({"base": str(tmp_path)}, "weight-00000.safetensors is not there, and the base's has"),
        ({"base": str(tmp_path / "short")}, f"{tmp_path / 'short'} is not the base of {checkpoint}"),
        ({"base": str(tmp_path / "changed")}, f"{tmp_path / 'changed'}/weight-00000.safetensors has sha256"),
        ({"base": str(of_run(trained, "base", 3))}, f"which was trained with {origin}, has"),
        (
            {"base": str(moved), "resume": str(complete), "set": plain, "name": "a"},
            "holds all of its weights: leave out --base",
        ),
        ({"base": str(moved), "resume": None, "set": plain, "name": "b"}, "base belongs to a checkpoint"),
        ({"base": str(moved), "resume": None, "set": {"training.init_from": str(moved)}, "name": "c"}, "leave out --base"),
        ({"resume": None, "set": {"training.init_from": str(checkpoint)}, "name": "d"}, "--base DIR"),
    ]
    cases = [{"name": "run", "resume": "auto"} | case for case, _ in wrong]
    found: list[dict[str, Any]] = [
        {"name": "e", "set": {"training.init_from": str(checkpoint)}, "base": str(moved), "only_save": True},
        {"name": "removed", "set": {"training.init_from": str(tmp_path / "gone")}, "remove": str(tmp_path / "gone")},
        {"name": "run", "resume": "auto", "base": str(moved)},
        {"name": "run", "resume": "auto"},
    ]
    found[1]["only_save"] = True
    results = run_workers(TRAIN_CASES, 2, {"config": tuning, "cases": cases + found}, tmp_path / "workers")
    for rank in results:
        for (case, told), result in zip(wrong, rank, strict=False):
            assert told in result.get("error", ""), (case, result)
        assert [result.get("step") for result in rank[len(wrong) :]] == [0, 0, 2, 3]
    assert sorted(path.name for path in (root / "run" / "checkpoints").iterdir()) == [
        f"step-0000000{step}" for step in (1, 2, 3)
    ]
    assert of_run(tuning, "removed", 0).is_dir()

    status, _, errors = command("export", checkpoint, tmp_path / "out")
    assert status == 2 and errors.startswith(f"error: {checkpoint} holds only what was trained") and errors.count("\n") == 1
    assert command("export", checkpoint, tmp_path / "out", "--base", moved)[0] == 0
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", merged))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], value) for key, value in theirs.items())
    wanted = ("--prompt", "abc de", "--max-new-tokens", 4)
    text = command("generate", merged, *wanted)
    assert text[0] == 0 and command("generate", checkpoint, *wanted, "--base", moved)[:2] == text[:2]
    assert "leave out --base" in command("generate", merged, *wanted, "--base", moved)[2]
    evaluate = ["evaluate", "perplexity", checkpoint, "--data", tuning["data"]["path"], "--output", tmp_path / "evaluated"]
    evaluate += ["--lengths", 16, "--max-tokens", 64]
    assert "holds only what was trained" in command(*evaluate)[2]
    assert "holds only what was trained" in command(*evaluate, "--data", tmp_path / "gone")[2]  # before data is looked for
    assert command(*evaluate, "--base", moved)[0] == 0
