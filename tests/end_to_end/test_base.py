"""Runs whose checkpoints leave out the frozen weights that training.init_from holds."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from megatape.accounting.whole_model.checkpoint_size import checkpoint_bytes
from megatape.checkpoint.format.hashed_files import hash_file
from megatape.checkpoint.load.reader import CheckpointReader, verified_checkpoint
from megatape.hf.exporting.exporter import export
from megatape.hf.importing.importer import import_model
from megatape.run_folder import RunFolder
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import WITH_TRANSFORMERS, run_workers
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import KINDS, assert_identical, flip_byte, tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

STAGES: dict[str, dict[str, Any]] = {
    "stage0": {"zero.stage": 0},
    "stage2": {"zero.stage": 2, "training.precision": "bfloat16"},
    "stage3": {"zero.stage": 3},
    "bfloat16": {"zero.stage": 3, "training.precision": "bfloat16"},
}


def checkpoint_of(raw: dict[str, Any], run: str, step: int) -> Path:
    return RunFolder(Path(raw["run"]["directory"]) / run).checkpoint(step)


@pytest.fixture
def tuning(trained: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Return a configuration for training adapters and norms from a copy of a checkpoint, for the test to change."""
    raw = copy.deepcopy(trained)
    origin = shutil.copytree(checkpoint_of(trained, "base", 4), tmp_path / "origin")
    raw["run"]["directory"] = str(tmp_path / "run")
    raw["training"]["steps"] = 3
    raw["checkpoint"] = {"interval": 1, "keep": 4}
    raw["model"]["lora"] = {"rank": 2, "alpha": 4.0, "dropout": 0.2}
    raw["training"] |= {"init_from": str(origin), "trainable": ["adapters", "norms"]}
    return raw


@pytest.mark.slow
def test_runs_resume_bit_for_bit(tuning: dict[str, Any], tmp_path: Path) -> None:
    """Two data x two tensor-parallel ranks resume their own checkpoints and those from one process."""
    tuning["checkpoint"]["interval"] = 2
    plain = {"name": "plain", "set": {"zero.stage": 0, "training.steps": 2}}
    assert_no_errors(run_cases(tuning, [plain], 1, tmp_path / "workers-1"))
    plain_checkpoint = checkpoint_of(tuning, "plain", 2)
    cases: list[dict[str, Any]] = []
    for name, changes in STAGES.items():
        case = {"set": changes | {"parallel.tp": 2}}
        cases.append(case | {"name": name})
        cases.append(case | {"name": f"{name}-resumed", "resume": str(checkpoint_of(tuning, name, 2))})
        moved = {"name": f"{name}-moved", "resume": str(plain_checkpoint), "only_save": True}
        # The checkpoint's precision differs.
        cases.append(case | moved | {"allow_changes": True})

    assert_no_errors(run_cases(tuning, cases, 4, tmp_path / "workers-4"))

    origin = CheckpointReader(tmp_path / "origin")
    for name in STAGES:
        straight = verified_checkpoint(checkpoint_of(tuning, name, 3))
        resumed = verified_checkpoint(checkpoint_of(tuning, f"{name}-resumed", 3))
        check_without_frozen_weights(straight, origin)
        for kind in KINDS:
            expected = tensors(straight.directory, kind)
            assert expected.keys() == tensors(straight.directory, "weight").keys()
            assert_identical(tensors(resumed.directory, kind), expected, (name, kind))
            moved_tensors = tensors(checkpoint_of(tuning, f"{name}-moved", 2), kind)
            assert_identical(moved_tensors, tensors(plain_checkpoint, kind), (name, kind))


def check_without_frozen_weights(reader: CheckpointReader, origin: CheckpointReader) -> None:
    """Check that a checkpoint only has files for adapters and norms, reading all other weights from its base."""
    assert reader.manifest.features == ("base",)
    stored = tensors(reader.directory, "weight").keys()
    all_names = set(reader.names())
    assert {name for name in stored if ".adapter." not in name} == {name for name in all_names if "norm" in name}
    assert all_names == stored | set(origin.names())
    for name in all_names - stored:
        assert torch.equal(reader.tensor(name), origin.tensor(name)), name


@pytest.mark.slow
def test_checkpoints_leave_out_what_their_bases_hold(tuning: dict[str, Any], tmp_path: Path) -> None:
    """The base may be an import, an export, a checkpoint, or a checkpoint's own base."""
    origin = tmp_path / "origin"
    export(verified_checkpoint(origin), tmp_path / "exported")
    save_tiny("llama", tmp_path / "llama")
    import_model(tmp_path / "llama", tmp_path / "import", "tape", 32)
    first = str(checkpoint_of(tuning, "checkpoint", 0))
    changes: dict[str, dict[str, Any]] = {
        "checkpoint": {},
        "exported": {"training.init_from": str(tmp_path / "exported")},
        "imported": settings_of_import(tmp_path / "import"),
        "chained": {"training.init_from": first, "training.trainable": ["adapters"]},
        "complete": {"training.init_from": first, "training.trainable": ["*"]},
        "new": {"training.init_from": None},
    }
    cases = [{"name": name, "set": settings, "only_save": True} for name, settings in changes.items()]

    assert_no_errors(run_cases(tuning, cases, 2, tmp_path / "workers", imports=WITH_TRANSFORMERS))

    readers = {name: verified_checkpoint(checkpoint_of(tuning, name, 0)) for name in changes}
    sources = {
        "checkpoint": origin,
        "chained": origin,
        "exported": tmp_path / "exported",
        "imported": tmp_path / "llama",
    }
    for name, source in sources.items():
        check_base(readers[name], source, ".position." if name == "imported" else ".adapter.")
    for name in ("complete", "new"):
        assert readers[name].base is None
        assert readers[name].manifest.format == 1
    for name in ("checkpoint", "complete", "exported", "new"):
        check_planned_size(readers[name])

    plain = readers["checkpoint"]
    for name in ("chained", "exported", "complete"):
        for parameter in plain.names():
            assert torch.equal(readers[name].tensor(parameter), plain.tensor(parameter)), (name, parameter)
    shutil.rmtree(plain.directory)
    chained = verified_checkpoint(checkpoint_of(tuning, "chained", 0))
    assert torch.isfinite(chained.tensor("embedding.weight")).all()


def settings_of_import(folder: Path) -> dict[str, Any]:
    """Return the configuration changes for training an imported model's norms."""
    imported = json.loads((folder / "config.json").read_text())
    settings = {}
    for section in ("model", "export"):
        for key, value in imported[section].items():
            settings[f"{section}.{key}"] = value
    settings |= {"training.init_from": str(folder), "training.trainable": ["norms"], "model.lora": None}
    return settings


def check_base(reader: CheckpointReader, source: Path, trained_part: str) -> None:
    """Check that the checkpoint holds what was trained, norms and one other part, and its base the other weights."""
    base = reader.base
    assert base is not None
    assert base.directory == source
    assert base.files == {file: hash_file(base.directory / file) for file in base.files}
    stored = reader.manifest.tensors["weight"]
    assert stored
    assert [name for name in stored if "norm" not in name and trained_part not in name] == []
    assert [name for name in base.tensors if "norm" in name or trained_part in name] == []


def check_planned_size(reader: CheckpointReader) -> None:
    num_bytes = 0
    for kind in reader.manifest.tensors:
        for tensor in tensors(reader.directory, kind).values():
            num_bytes += tensor.numel() * 4
    config = reader.config
    assert checkpoint_bytes(config.model, config.training, config.optimizer) == num_bytes


class Tuned(NamedTuple):
    """A run of two steps after moving its base.

    Attributes:
        config: The run's configuration.
        checkpoint: Its last checkpoint.
        merged: Export of the checkpoint, made before moving.
        origin: The base's former folder.
        moved: The base's folder.
    """

    config: dict[str, Any]
    checkpoint: Path
    merged: Path
    origin: Path
    moved: Path


@pytest.fixture
def tuned(tuning: dict[str, Any], tmp_path: Path) -> Tuned:
    two_steps = {"name": "run", "set": {"training.steps": 2}}
    assert_no_errors(run_cases(tuning, [two_steps], 2, tmp_path / "workers-run"))
    checkpoint = checkpoint_of(tuning, "run", 2)
    merged = tmp_path / "merged"
    export(verified_checkpoint(checkpoint), merged)
    origin = tmp_path / "origin"
    moved = origin.rename(tmp_path / "moved")
    return Tuned(tuning, checkpoint, merged, origin, moved)


@pytest.mark.slow
def test_other_bases_are_refused(tuned: Tuned, trained: dict[str, Any], tmp_path: Path) -> None:
    """Every refusal has its reason, and moves no checkpoint aside."""
    config, checkpoint, _, origin, moved = tuned
    changed = Path(shutil.copytree(moved, tmp_path / "changed"))
    flip_byte(changed / "weight-00000.safetensors")
    short = Path(shutil.copytree(moved, tmp_path / "short"))
    weights = short / "weight-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    removed_base = shutil.copytree(moved, tmp_path / "removed")
    complete = checkpoint_of(trained, "base", 4)
    another_step = checkpoint_of(trained, "base", 3)
    plain = {"model.lora": None, "training.trainable": ["all"], "training.init_from": None}
    resume: dict[str, Any] = {"name": "run", "resume": "auto"}
    refused: list[tuple[dict[str, Any], str]] = [
        (
            resume,
            f"holds only what was trained. The rest is in its base {origin}, and there is no such folder",
        ),
        (
            resume | {"base": str(tmp_path / "none")},
            f"`base` {tmp_path / 'none'} is not a folder",
        ),
        (
            resume | {"base": str(tmp_path)},
            "weight-00000.safetensors is not there, and the base's has",
        ),
        (
            resume | {"base": str(short)},
            f"{short} is not the base of {checkpoint}",
        ),
        (
            resume | {"base": str(changed)},
            f"{changed}/weight-00000.safetensors has sha256",
        ),
        (
            resume | {"base": str(another_step)},
            f"which was trained with {origin}, has",
        ),
        (
            {"name": "a", "resume": str(complete), "base": str(moved), "set": plain},
            "holds all of its weights: leave out `base`",
        ),
        (
            {"name": "b", "base": str(moved), "set": plain},
            "base belongs to a checkpoint",
        ),
        (
            {"name": "c", "base": str(moved), "set": {"training.init_from": str(moved)}},
            "leave out `base`",
        ),
        (
            {"name": "d", "set": {"training.init_from": str(checkpoint)}},
            "`base` DIR",
        ),
    ]
    accepted: list[dict[str, Any]] = [
        {"name": "e", "set": {"training.init_from": str(checkpoint)}, "base": str(moved), "only_save": True},
        {
            "name": "base removed",
            "set": {"training.init_from": str(removed_base)},
            "remove": str(removed_base),
            "only_save": True,
        },
        resume | {"base": str(moved)},
        resume,
    ]
    cases = [case for case, _ in refused] + accepted

    results_by_rank = run_workers(TRAIN_CASES, 2, {"config": config, "cases": cases}, tmp_path / "workers")

    for results in results_by_rank:
        for (case, expected), result in zip(refused, results, strict=False):
            assert expected in result.get("error", ""), (case, result)
        assert [result.get("step") for result in results[len(refused) :]] == [0, 0, 2, 3]
    assert sorted(checkpoint.parent.iterdir()) == [checkpoint_of(config, "run", step) for step in (1, 2, 3)]
    assert checkpoint_of(config, "base removed", 0).is_dir()


@pytest.mark.slow
def test_export_reads_a_moved_base(tuned: Tuned, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "out"

    status, _, errors = command("export", tuned.checkpoint, out)
    assert status == 2
    assert errors.startswith(f"error: {tuned.checkpoint} holds only what was trained")
    assert errors.count("\n") == 1

    status, _, errors = command("export", tuned.checkpoint, out, "--base", tuned.moved)
    assert status == 0, errors
    assert_identical(load_file(out / "model.safetensors"), load_file(tuned.merged / "model.safetensors"))


@pytest.mark.slow
def test_generate_reads_a_moved_base(tuned: Tuned, command: Command) -> None:
    prompt = ("--prompt", "abc de", "--max-new-tokens", 4)

    status, expected_text, errors = command("generate", tuned.merged, *prompt)
    assert status == 0, errors

    status, text, errors = command("generate", tuned.checkpoint, *prompt, "--base", tuned.moved)
    assert status == 0, errors
    assert text == expected_text

    _, _, errors = command("generate", tuned.merged, *prompt, "--base", tuned.moved)
    assert "leave out --base" in errors


@pytest.mark.slow
def test_evaluate_reads_a_moved_base(tuned: Tuned, tmp_path: Path, command: Command) -> None:
    words = ["evaluate", "perplexity", tuned.checkpoint, "--output", tmp_path / "evaluated"]
    words += ["--lengths", 16, "--max-tokens", 64]
    data = ["--data", tuned.config["data"]["path"]]

    _, _, errors = command(*words, *data)
    assert "holds only what was trained" in errors

    _, _, errors = command(*words, "--data", tmp_path / "no data")
    assert "holds only what was trained" in errors, "the base is checked before the data"

    status, _, errors = command(*words, *data, "--base", tuned.moved)
    assert status == 0, errors
