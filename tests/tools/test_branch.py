"""A branch of a stable run is, bit for bit, the run configured with its decay from the start."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.checkpoint.reader import CheckpointReader
from megatape.config import load_config
from tests.helpers.data.data_directory import linked_snapshot
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

STEP = 8 * 32  # tokens


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
        whole = {"kind": "wsd", "warmup_tokens": 2 * STEP, "decay_tokens": 3 * STEP}
        cases = [
            {"name": "stable"},
            {"name": "whole", "set": {"training.steps": 6} | {f"schedule.{key}": value for key, value in whole.items()}},
            {"name": "decayed", "set": {"schedule.kind": "linear"}},
        ]
        results = run_workers(TRAIN_CASES, 1, {"config": raw_config, "cases": cases}, folder / "workers")[0]
        assert not any("error" in result for result in results), results
    return folder / "stable"


def test_branch_equals_a_run_configured_with_its_decay(stable: Path, command: Command) -> None:
    """The branch resumes after step 3 with the data order, learning rates, weights and moving average of `whole`.

    Its ledger covers all six steps. A decay starting a step late, or other samples, would change them.
    """
    checkpoint = stable / "checkpoints" / "step-00000003"
    out = stable.with_name("stable-decay-4-6")
    status, printed, errors = command("branch", checkpoint, "--decay-tokens", 3 * STEP - 5)
    assert status == 0, errors
    assert f"megatape pretrain --config {out / 'config.json'} --resume auto" in printed
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000003"]
    config = load_config(out / "config.json")
    assert (config.training.steps, config.run.directory) == (6, str(out))
    case = {"name": out.name, "resume": "auto"}
    results = run_workers(
        TRAIN_CASES,
        1,
        {"config": config.model_dump() | {"run": {"directory": str(stable.parent)}}, "cases": [case]},
        out / "workers",
    )
    assert results[0] == [{"step": 3, "samples": 24}]

    lines = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (stable.with_name("whole"), out)
    ]
    for field in ("step", "loss", "grad_norm", "lr", "samples", "digest"):
        assert [line[field] for line in lines[0]] == [line[field] for line in lines[1]], field
    assert [round(line["lr"] * 100, 6) for line in lines[1]] == [0.5, 1.0, 1.0, 1.0, round(2 / 3, 6), round(1 / 3, 6)]
    for kind in ("weight", "exp_avg", "exp_avg_sq", "ema"):
        whole, branched = (step_tensors(run, kind, step=6) for run in (stable.with_name("whole"), out))
        assert whole, kind
        assert all(torch.equal(branched[name], tensor) for name, tensor in whole.items()), kind
    status, printed, errors = command("ledger", out)
    assert status == 0, errors
    assert "steps:     1 to 6" in printed, errors
    assert CheckpointReader(checkpoint).step == 3
    assert len(list((stable / "checkpoints").iterdir())) == 6


def test_refusals(stable: Path, command: Command, tmp_path: Path) -> None:
    """Refused branches write nothing."""
    for run, step, message in (
        ("stable", 1, "is not in the stable part of its run: its warm-up has 2 steps"),
        ("decayed", 4, "step 5 has 50.0% of the peak"),
        ("decayed", 6, "step 7 has 0.0% of the peak"),
    ):
        checkpoint = stable.with_name(run) / "checkpoints" / f"step-{step:08d}"
        status, _, errors = command("branch", checkpoint, "--decay-tokens", 100, "--out", tmp_path / "new")
        assert (status, errors.count("\n")) == (2, 1), errors
        assert message in errors, errors
    checkpoint = stable / "checkpoints" / "step-00000006"
    status, _, errors = command("branch", checkpoint, "--decay-tokens", 0)
    assert status == 2
    assert "decay-tokens" in errors
    status, _, errors = command("branch", checkpoint, "--decay-tokens", 9, "--out", stable)
    assert status == 2
    assert f"{stable} exists" in errors
    assert not list(tmp_path.iterdir())
    copied = shutil.copytree(checkpoint, tmp_path / "copied" / "step")
    status, _, errors = command("branch", copied, "--decay-tokens", STEP)
    assert status == 2
    assert f"is not in the folder of its run (no {tmp_path}/config.json): give --out" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["copied"]


def test_relative_names(stable: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch is created beside the run, in any working directory."""
    monkeypatch.chdir(stable / "checkpoints")
    status, _, errors = command("branch", "step-00000005", "--decay-tokens", STEP)
    assert status == 0, errors
    assert (stable.with_name("stable-decay-6-6") / "config.json").is_file(), errors


def test_copies_if_links_are_not_supported(
    stable: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("another file system")))
    status, _, errors = command(
        "branch", stable / "checkpoints" / "step-00000006", "--decay-tokens", 9, "--out", tmp_path / "new"
    )
    assert status == 0, errors
    CheckpointReader(tmp_path / "new" / "checkpoints" / "step-00000006").verify()
    assert load_config(tmp_path / "new" / "config.json").training.steps == 7


@pytest.mark.parametrize("links_work", [True, False])
def test_a_snapshot_of_relative_links(
    stable: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links_work: bool
) -> None:
    """The branch has the snapshot's files listed in the manifest, and no targets of other links."""
    if not links_work:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("another file system")))
    checkpoint = stable / "checkpoints" / "step-00000006"
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("private")
    snapshot = linked_snapshot(Path(shutil.copytree(checkpoint, tmp_path / "step-00000006")))
    (snapshot / "more").symlink_to(secrets)
    out = tmp_path / "deep" / "branch"
    status, _, errors = command("branch", snapshot, "--decay-tokens", 9, "--out", out)
    assert status == 0, errors
    branched = out / "checkpoints" / "step-00000006"
    CheckpointReader(branched).verify()
    assert {path.name for path in branched.iterdir()} == {path.name for path in checkpoint.iterdir()}
    assert not any(path.is_symlink() for path in branched.iterdir())


def test_link_to_a_device(stable: Path, command: Command, tmp_path: Path) -> None:
    """The error names the link, and nothing is written."""
    copied = tmp_path / "step-00000006"
    shutil.copytree(stable / "checkpoints" / "step-00000006", copied)
    (copied / "rng.safetensors").unlink()
    (copied / "rng.safetensors").symlink_to("/dev/zero")
    status, _, errors = command("branch", copied, "--decay-tokens", 9, "--out", tmp_path / "new")
    assert status == 2
    assert f"{copied}/rng.safetensors: a folder, a pipe or a device, no file" in errors
    assert not (tmp_path / "new").exists()
