"""Averages of checkpoints are checkpoints: exported, continued and branched like any other."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.checkpoint.format.features import FEATURES_FORMAT
from megatape.checkpoint.format.manifest import load_manifest
from megatape.checkpoint.load.reader import verified_checkpoint
from megatape.config import load_config
from megatape.run_folder import RunFolder
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
        (results,) = run_workers(TRAIN_CASES, 1, {"config": raw_config, "cases": cases}, folder / "workers")
        assert [result for result in results if "error" in result] == []
    return folder / "stable"


@pytest.mark.parametrize(("weighting", "parts"), [("uniform", (1, 1, 1)), ("linear", (1, 2, 3))])
def test_weights_are_the_mean(stable: Path, command: Command, weighting: str, parts: tuple[int, ...]) -> None:
    """The order on the command line does not matter."""
    out = stable / weighting
    steps = [2, 3, 4]
    shuffled = [RunFolder(stable).checkpoint(step) for step in (4, 2, 3)]

    status, printed, errors = command("average", *shuffled, "--output", out, "--weighting", weighting)

    assert status == 0, errors
    assert f"{parts[2] / sum(parts):.1%} of step 4; all other state is that of step 4" in printed, errors
    reader = verified_checkpoint(out)
    average = reader.state.average
    assert average is not None
    assert (average.steps, average.run) == (steps, str(stable))
    weights = [step_tensors(stable, "weight", step) for step in steps]
    for name in reader.names():
        total = torch.zeros_like(weights[0][name], dtype=torch.float64)
        for part, step_weights in zip(parts, weights, strict=True):
            total += part / sum(parts) * step_weights[name].double()
        assert torch.equal(reader.tensor(name), total.float()), name


def test_average_keeps_the_newest_checkpoints_state(stable: Path, command: Command, tmp_path: Path) -> None:
    """The average has no moving average of its own."""
    checkpoints = [RunFolder(stable).checkpoint(step) for step in (4, 2, 3)]
    assert command("average", *checkpoints, "--output", tmp_path / "average")[0] == 0
    reader = verified_checkpoint(tmp_path / "average")
    newest = verified_checkpoint(RunFolder(stable).checkpoint(4))
    kinds = newest.manifest.tensors.keys()
    assert "ema" in kinds
    assert reader.manifest.tensors.keys() == kinds - {"ema"}
    assert reader.manifest.features == ("average",)
    assert reader.names() == newest.names()
    assert reader.samples == newest.samples


@pytest.fixture
def average(stable: Path, command: Command, tmp_path: Path) -> Path:
    """Average the checkpoints after steps 1 and 2."""
    out = tmp_path / "average"
    assert command("average", RunFolder(stable).checkpoint(1), RunFolder(stable).checkpoint(2), "--output", out)[0] == 0
    return out


def test_continues_like_any_other(average: Path, command: Command, tmp_path: Path) -> None:
    """An average can be branched, a branch trains, and a new run starts from it."""
    branch = tmp_path / "branch"
    status, _, errors = command("branch", average, "--decay-tokens", 2 * 8 * 32, "--output", branch)
    assert status == 0, errors
    assert len((branch / "metrics.jsonl").read_text().splitlines()) == 2
    raw = load_config(branch / "config.json").model_dump() | {"run": {"directory": str(tmp_path)}}
    cases = [
        {"name": "branch", "resume": "auto"},
        {"name": "started", "set": {"training.init_from": str(average)}, "only_save": True},
    ]

    (results,) = run_workers(TRAIN_CASES, 1, {"config": raw, "cases": cases}, tmp_path / "workers")

    assert results == [{"step": 2, "samples": 16}, {"step": 0, "samples": 0}]
    mean = verified_checkpoint(average)
    for kind in ("weight", "ema"):
        for name, tensor in step_tensors(tmp_path / "started", kind, 0).items():
            assert torch.equal(tensor, mean.tensor(name)), (kind, name)
    assert "the average of those after steps 1, 2" in (tmp_path / "workers/rank0.log").read_text()
    status, printed, errors = command("ledger", branch)
    assert status == 0, errors
    assert "steps:     1 to 4" in printed, errors


def test_is_exported(average: Path, command: Command, tmp_path: Path) -> None:
    status, _, errors = command("export", average, tmp_path / "exported")
    assert status == 0, errors


# Folders to average, in terms of {stable}, {other}, {average} and {changed}, and the error
REFUSALS = [
    (["{stable}/checkpoints/step-00000001"], "give at least two checkpoints of a run"),
    (["{stable}/checkpoints/step-00000001", "{stable}/checkpoints/step-00000001"], "both have step 1"),
    (
        ["{stable}/checkpoints/step-00000002", "{other}/checkpoints/step-00000001"],
        "training.seed is 5 and 1234",
    ),
    (["{average}", "{stable}/checkpoints/step-00000001"], "is an average already"),
    (["{changed}", "{stable}/checkpoints/step-00000002"], "its sha256 is not the one in the manifest"),
    (["{stable}", "{stable}/checkpoints/step-00000002"], "is a run, not a checkpoint"),
]


@pytest.mark.parametrize(("folders", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_refusals(stable: Path, average: Path, command: Command, tmp_path: Path, folders: list[str], message: str) -> None:
    """Each refusal is one line, and nothing is written."""
    changed = tmp_path / "step-00000001"
    shutil.copytree(RunFolder(stable).checkpoint(1), changed)
    flip_byte(changed / "weight-00000.safetensors")
    other = stable.with_name("other")
    paths = [name.format(stable=stable, other=other, average=average, changed=changed) for name in folders]

    status, _, errors = command("average", *paths, "--output", tmp_path / "out")

    assert (status, errors.count("\n")) == (2, 1), errors
    assert message in errors, errors
    assert not (tmp_path / "out").exists()


def test_an_existing_folder_is_refused(stable: Path, average: Path, command: Command) -> None:
    checkpoints = [RunFolder(stable).checkpoint(1), RunFolder(stable).checkpoint(2)]
    status, _, errors = command("average", *checkpoints, "--output", average)
    assert status == 2
    assert f"{average} exists" in errors


def test_earlier_versions_refuse_it(average: Path) -> None:
    assert load_manifest(average).format == FEATURES_FORMAT


def test_snapshots_of_relative_links(stable: Path, command: Command, tmp_path: Path) -> None:
    """The average copies files from the newest snapshot, not relative links, which would be broken in the average."""
    snapshots = []
    for step in (1, 2):
        checkpoint = RunFolder(stable).checkpoint(step)
        snapshots.append(linked_snapshot(Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))))
    out = tmp_path / "deep" / "average"
    status, _, errors = command("average", *snapshots, "--output", out)
    assert status == 0, errors
    verified_checkpoint(out)
    assert [path for path in out.iterdir() if path.is_symlink()] == []
