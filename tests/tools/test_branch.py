"""A branch of a stable run is, bit for bit, the run configured with its decay from the start."""

import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import load_config
from megatape.run_folder import RunFolder
from tests.helpers.data.data_directory import linked_snapshot
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

STEP_TOKENS = 8 * 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("branch")


@pytest.fixture
def stable(raw_config: dict[str, Any], folder: Path) -> Path:
    """Train six steps at the peak after a step of warm-up, saving each, with other runs beside it. Return the folder."""
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"]["steps"] = 6
    raw_config["schedule"] = {"kind": "constant", "warmup_fraction": 0.25}
    raw_config["checkpoint"] = {"interval": 1, "keep": 9}
    raw_config["optimizer"]["ema_decay"] = 0.9
    if not (folder / "stable").exists():
        whole = {
            "training.steps": 6,
            "schedule.kind": "wsd",
            "schedule.warmup_tokens": 2 * STEP_TOKENS,
            "schedule.decay_tokens": 3 * STEP_TOKENS,
        }
        cases: list[dict[str, Any]] = [
            {"name": "stable"},
            {"name": "whole", "set": whole},
            {"name": "decayed", "set": {"schedule.kind": "linear"}},
        ]
        (results,) = run_workers(TRAIN_CASES, 1, {"config": raw_config, "cases": cases}, folder / "workers")
        assert [result for result in results if "error" in result] == []
    return folder / "stable"


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def refuse_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hard links fail, as between file systems."""
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError("another file system")))


@pytest.fixture
def branch(stable: Path, command: Command) -> Path:
    """Branch off after step 3, train the branch, and return its folder."""
    out = stable.with_name("stable-decay-4-6")
    if out.exists():
        return out
    status, printed, errors = command("branch", RunFolder(stable).checkpoint(3), "--decay-tokens", 3 * STEP_TOKENS - 5)
    assert status == 0, errors
    assert f"megatape pretrain --config {out / 'config.json'} --resume auto" in printed
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000003"]
    config = load_config(out / "config.json")
    assert (config.training.steps, config.run.directory) == (6, str(out))
    raw = config.model_dump() | {"run": {"directory": str(stable.parent)}}
    payload = {"config": raw, "cases": [{"name": out.name, "resume": "auto"}]}
    results = run_workers(TRAIN_CASES, 1, payload, out / "workers")
    assert results[0] == [{"step": 3, "samples": 24}]
    return out


def test_branch_has_the_metrics_of_a_run_configured_with_its_decay(stable: Path, branch: Path) -> None:
    """A decay starting a step late, or other samples, would change them."""
    metrics = metrics_of(branch)
    expected = metrics_of(stable.with_name("whole"))
    for field in ("step", "loss", "grad_norm", "lr", "samples", "digest"):
        assert [line[field] for line in metrics] == [line[field] for line in expected], field
    percent = [round(line["lr"] * 100, 6) for line in metrics]
    assert percent == [0.5, 1.0, 1.0, 1.0, round(2 / 3, 6), round(1 / 3, 6)]


@pytest.mark.parametrize("kind", ["weight", "exp_avg", "exp_avg_sq", "ema"])
def test_branch_has_the_state_of_a_run_configured_with_its_decay(stable: Path, branch: Path, kind: str) -> None:
    tensors = step_tensors(branch, kind, step=6)
    expected = step_tensors(stable.with_name("whole"), kind, step=6)
    assert expected
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name


def test_ledger_of_a_branch_covers_all_steps(branch: Path, command: Command) -> None:
    status, printed, errors = command("ledger", branch)
    assert status == 0, errors
    assert "steps:     1 to 6" in printed, errors


def test_branching_leaves_the_run_alone(stable: Path, branch: Path) -> None:
    assert CheckpointReader(RunFolder(stable).checkpoint(3)).step == 3
    assert len(list((stable / "checkpoints").iterdir())) == 6


@pytest.mark.parametrize(
    ("run", "step", "message"),
    [
        ("stable", 1, "is not in the stable part of its run: its warm-up has 2 steps"),
        ("decayed", 4, "step 5 has 50.0% of the peak"),
        ("decayed", 6, "step 7 has 0.0% of the peak"),
    ],
)
def test_checkpoints_outside_the_stable_part_are_refused(
    stable: Path, command: Command, tmp_path: Path, run: str, step: int, message: str
) -> None:
    checkpoint = RunFolder(stable.with_name(run)).checkpoint(step)
    status, _, errors = command("branch", checkpoint, "--decay-tokens", 100, "--output", tmp_path / "new")
    assert (status, errors.count("\n")) == (2, 1), errors
    assert message in errors, errors
    assert list(tmp_path.iterdir()) == []


def test_a_decay_without_tokens_is_refused(stable: Path, command: Command) -> None:
    status, _, errors = command("branch", RunFolder(stable).checkpoint(6), "--decay-tokens", 0)
    assert status == 2
    assert "decay-tokens" in errors


def test_an_existing_folder_is_refused(stable: Path, command: Command) -> None:
    status, _, errors = command("branch", RunFolder(stable).checkpoint(6), "--decay-tokens", 9, "--output", stable)
    assert status == 2
    assert f"{stable} exists" in errors


def test_a_checkpoint_outside_its_run_needs_a_folder(stable: Path, command: Command, tmp_path: Path) -> None:
    copied = shutil.copytree(RunFolder(stable).checkpoint(6), tmp_path / "copied" / "step")
    status, _, errors = command("branch", copied, "--decay-tokens", STEP_TOKENS)
    assert status == 2
    assert f"is not in the folder of its run (no {tmp_path}/config.json): give --output" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["copied"]


def test_relative_names(stable: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch is created beside the run, in any working directory."""
    monkeypatch.chdir(stable / "checkpoints")
    status, _, errors = command("branch", "step-00000005", "--decay-tokens", STEP_TOKENS)
    assert status == 0, errors
    assert (stable.with_name("stable-decay-6-6") / "config.json").is_file(), errors


def test_copies_if_links_are_not_supported(
    stable: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_links(monkeypatch)
    status, _, errors = command("branch", RunFolder(stable).checkpoint(6), "--decay-tokens", 9, "--output", tmp_path / "new")
    assert status == 0, errors
    CheckpointReader(RunFolder(tmp_path / "new").checkpoint(6)).verify()
    assert load_config(tmp_path / "new" / "config.json").training.steps == 7


@pytest.mark.parametrize("links_work", [True, False])
def test_a_snapshot_of_relative_links(
    stable: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links_work: bool
) -> None:
    """The branch has the snapshot's files listed in the manifest, and no targets of other links."""
    if not links_work:
        refuse_links(monkeypatch)
    checkpoint = RunFolder(stable).checkpoint(6)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("private")
    snapshot = linked_snapshot(Path(shutil.copytree(checkpoint, tmp_path / "step-00000006")))
    (snapshot / "more").symlink_to(secrets)
    out = tmp_path / "deep" / "branch"
    status, _, errors = command("branch", snapshot, "--decay-tokens", 9, "--output", out)
    assert status == 0, errors
    branched = RunFolder(out).checkpoint(6)
    CheckpointReader(branched).verify()
    assert {path.name for path in branched.iterdir()} == {path.name for path in checkpoint.iterdir()}
    assert [path for path in branched.iterdir() if path.is_symlink()] == []


def test_link_to_a_device(stable: Path, command: Command, tmp_path: Path) -> None:
    """The error names the link, and nothing is written."""
    copied = tmp_path / "step-00000006"
    shutil.copytree(RunFolder(stable).checkpoint(6), copied)
    (copied / "rng.safetensors").unlink()
    (copied / "rng.safetensors").symlink_to("/dev/zero")
    status, _, errors = command("branch", copied, "--decay-tokens", 9, "--output", tmp_path / "new")
    assert status == 2
    assert f"{copied}/rng.safetensors: a folder, a pipe or a device, no file" in errors
    assert not (tmp_path / "new").exists()
