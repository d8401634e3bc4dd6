"""Averages of checkpoints are checkpoints: exported, continued and branched like any other."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.checkpoint.features import FEATURES_FORMAT
from megatape.checkpoint.manifest import load_manifest
from megatape.checkpoint.reader import verified_checkpoint
from megatape.config import load_config
from tests.helpers.data.data_directory import linked_snapshot
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import flip_byte, step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("average")


@pytest.fixture
def stable(raw_config: dict[str, Any], folder: Path) -> Path:
    """Train four steps at the peak with a moving average, saving each. A run with another seed is beside it."""
    raw_config["run"]["directory"] = str(folder)
    raw_config["optimizer"]["ema_decay"] = 0.5
    raw_config["schedule"] = {"kind": "constant", "warmup_fraction": 0.0}
    raw_config["checkpoint"] = {"interval": 1, "keep": 9}
    if not (folder / "stable").exists():
        cases = [{"name": "stable"}, {"name": "other", "set": {"training.seed": 5, "training.steps": 1}}]
        results = run_workers(TRAIN_CASES, 1, {"config": raw_config, "cases": cases}, folder / "workers")[0]
        assert not any("error" in result for result in results), results
    return folder / "stable"


def checkpoints(run: Path, *steps: int) -> list[Path]:
    return [run / "checkpoints" / f"step-{step:08d}" for step in steps]


@pytest.mark.parametrize(("weighting", "parts"), [("uniform", (1, 1, 1)), ("linear", (1, 2, 3))])
def test_is_the_mean(stable: Path, command: Command, weighting: str, parts: tuple[int, ...]) -> None:
    """The order on the command line does not matter. Everything except the weights is the newest checkpoint's, without its
    average.
    """
    out = stable / weighting
    status, printed, errors = command("average", *checkpoints(stable, 4, 2, 3), "--output", out, "--weighting", weighting)
    assert status == 0, errors
    assert f"{parts[2] / sum(parts):.1%} of step 4; all other state is that of step 4" in printed, errors
    reader = verified_checkpoint(out)
    newest = verified_checkpoint(checkpoints(stable, 4)[0])
    average = reader.state.average
    assert average is not None
    assert (average.steps, average.run) == ([2, 3, 4], str(stable))
    for name in newest.names():
        total = sum(
            part / sum(parts) * step_tensors(stable, "weight", step)[name].double()
            for part, step in zip(parts, (2, 3, 4), strict=True)
        )
        assert torch.equal(reader.tensor(name), total.float()), name
    kinds = newest.manifest.tensors.keys()
    assert reader.manifest.tensors.keys() == kinds - {"ema"}
    assert "ema" in kinds
    assert reader.manifest.features == ("average",)
    assert reader.samples == newest.samples


def test_continues_like_any_other(stable: Path, command: Command, tmp_path: Path) -> None:
    """An average can be branched, a branch trains, a new run starts from it, and export writes it."""
    average = tmp_path / "average"
    branch = tmp_path / "branch"
    assert command("average", *checkpoints(stable, 1, 2), "--output", average)[0] == 0
    status, _, errors = command("branch", average, "--decay-tokens", 2 * 8 * 32, "--out", branch)
    assert status == 0, errors
    assert len((branch / "metrics.jsonl").read_text().splitlines()) == 2
    raw = load_config(branch / "config.json").model_dump() | {"run": {"directory": str(tmp_path)}}
    cases = [
        {"name": "branch", "resume": "auto"},
        {"name": "begun", "set": {"training.init_from": str(average)}, "only_save": True},
    ]
    results = run_workers(TRAIN_CASES, 1, {"config": raw, "cases": cases}, tmp_path / "workers")[0]
    assert results == [{"step": 2, "samples": 16}, {"step": 0, "samples": 0}]
    mean = verified_checkpoint(average)
    begun = step_tensors(tmp_path / "begun", "weight", 0)
    assert all(torch.equal(tensor, mean.tensor(name)) for name, tensor in begun.items())
    ema = step_tensors(tmp_path / "begun", "ema", 0)
    assert all(torch.equal(tensor, mean.tensor(name)) for name, tensor in ema.items())
    assert "the average of those after steps 1, 2" in (tmp_path / "workers/rank0.log").read_text()
    status, printed, errors = command("ledger", branch)
    assert status == 0, errors
    assert "steps:     1 to 4" in printed, errors
    status, _, errors = command("export", average, tmp_path / "exported")
    assert status == 0, errors


def test_refusals(stable: Path, command: Command, tmp_path: Path) -> None:
    """Each refusal is one line, and nothing is written."""
    first, second = checkpoints(stable, 1, 2)
    average = tmp_path / "average"
    changed = tmp_path / "step-00000001"
    assert command("average", first, second, "--output", average)[0] == 0
    shutil.copytree(first, changed)
    flip_byte(changed / "weight-00000.safetensors")
    for given, told in (
        ([first], "give at least two checkpoints of a run"),
        ([first, first], "both have step 1"),
        ([second, checkpoints(stable.with_name("other"), 1)[0]], "training.seed is 5 and 1234"),
        ([average, first], "is an average already"),
        ([changed, second], "its sha256 is not the one in the manifest"),
        ([stable, second], "is a run, not a checkpoint"),
    ):
        status, _, errors = command("average", *given, "--output", tmp_path / "out")
        assert (status, errors.count("\n")) == (2, 1), errors
        assert told in errors, errors
        assert not (tmp_path / "out").exists()
    status, _, errors = command("average", first, second, "--output", average)
    assert status == 2
    assert f"{average} exists" in errors


def test_earlier_versions_refuse_it(stable: Path, command: Command, tmp_path: Path) -> None:
    assert command("average", *checkpoints(stable, 1, 2), "--output", tmp_path / "average")[0] == 0
    assert load_manifest(tmp_path / "average").format == FEATURES_FORMAT


def test_snapshots_of_relative_links(stable: Path, command: Command, tmp_path: Path) -> None:
    """The average copies files from the newest snapshot, not relative links, which would be broken in the average."""
    given = [linked_snapshot(Path(shutil.copytree(each, tmp_path / each.name))) for each in checkpoints(stable, 1, 2)]
    out = tmp_path / "deep" / "average"
    status, _, errors = command("average", *given, "--output", out)
    assert status == 0, errors
    verified_checkpoint(out)
    assert not any(path.is_symlink() for path in out.iterdir())
