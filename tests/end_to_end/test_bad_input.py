"""Corrupted checkpoints or data, runs that do not fit together, divergence: reported clearly, and nothing is lost."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.errors import ExitStatus
from megatape.run_folder import RunFolder
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.case_runs import run_cases
from tests.helpers.runs.run_folders import flip_byte
from tests.helpers.runs.training_cases import TRAIN_CASES

SKIPPED = ("flipped", "short", "missing", "unfinished")
# Run -> end of the reported path, and the reason
EXPECTED_REASONS = {
    "flipped": ("/exp_avg_sq-00000.safetensors", "sha256"),
    "short": ("/weight-00000.safetensors", "bytes instead of"),
    "missing": ("/state.json", "missing"),
    "unfinished": ("", "not a complete checkpoint"),
}


def test_corrupted_checkpoints_are_skipped(finished: dict[str, Any], tmp_path: Path) -> None:
    """Corrupted checkpoints are moved aside, and the run continues from the one before."""
    root = Path(finished["run"]["directory"])
    newest = {name: copy_of_base(root, name).checkpoint(4) for name in SKIPPED}
    flip_byte(newest["flipped"] / "exp_avg_sq-00000.safetensors")
    weights = newest["short"] / "weight-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (newest["missing"] / "state.json").unlink()
    (newest["unfinished"] / "manifest.json").unlink()
    cases = [{"name": name, "set": {"training.steps": 5}, "resume": "auto"} for name in SKIPPED]

    results = run_cases(finished, cases, 2, tmp_path / "workers")

    assert results == [{"step": 3, "samples": 24}] * len(SKIPPED)
    lines = []
    for rank in (0, 1):
        lines += (tmp_path / "workers" / f"rank{rank}.log").read_text().splitlines()
    warnings = [line for line in lines if line.startswith("checkpoint not used")]
    for name, checkpoint in newest.items():
        names = sorted(path.name for path in checkpoint.parent.iterdir())
        assert names == ["step-00000004", "step-00000004.corrupted", "step-00000005"], "neither lost nor counted"
        file, reason = EXPECTED_REASONS[name]
        path = f"{name}/checkpoints/step-00000004{file}"
        assert any(path in warning and reason in warning for warning in warnings), name


def test_checkpoints_that_are_not_skipped(finished: dict[str, Any], tmp_path: Path) -> None:
    """--resume gives a corrupted checkpoint or one that has newer ones, one is of another version, or none is valid."""
    root = Path(finished["run"]["directory"])
    named = copy_of_base(root, "named").checkpoint(4)
    flip_byte(named / "weight-00000.safetensors")
    set_format(copy_of_base(root, "version").checkpoint(4), 99)
    hopeless = copy_of_base(root, "hopeless")
    for checkpoint in hopeless.checkpoints.iterdir():
        flip_byte(checkpoint / "state.json")
    older = RunFolder(root / "base").checkpoint(3)
    cases = [
        {"name": "explicit", "resume": str(named)},
        {"name": "version", "resume": "auto"},
        {"name": "hopeless", "resume": "auto"},
        {"name": "base", "resume": str(older)},
    ]

    results = run_cases(finished, cases, 2, tmp_path / "workers")

    of_named, of_version, of_hopeless, of_older = (result["error"] for result in results)
    assert str(named) in of_named
    assert "corrupted" in of_named
    assert "format 99" in of_version, "what another version wrote is not skipped as if it were broken"
    assert "none of the 2 checkpoints is valid" in of_hopeless
    assert len(list(hopeless.checkpoints.iterdir())) == 2, "no checkpoint is removed"
    assert "newer than" in of_older
    assert "step-00000004" in of_older


def copy_of_base(root: Path, name: str) -> RunFolder:
    return RunFolder(Path(shutil.copytree(root / "base", root / name)))


def set_format(checkpoint: Path, number: int) -> None:
    """Change the format in a checkpoint's manifest, and its hash."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    manifest["format"] = number
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(manifest))


@pytest.mark.slow
def test_any_flipped_byte_of_the_small_files_is_noticed(finished: dict[str, Any]) -> None:
    """With any byte of the manifest and the state flipped, they are refused or, for white space, read as before."""
    checkpoint = RunFolder(Path(finished["run"]["directory"]) / "base").checkpoint(4)
    sound = CheckpointReader(checkpoint)
    for name in ("manifest.json", "state.json"):
        path = checkpoint / name
        content = path.read_bytes()
        for position in range(len(content)):
            damaged = bytearray(content)
            damaged[position] ^= 1
            path.write_bytes(damaged)
            try:
                reader = CheckpointReader(checkpoint)
            except (ValueError, FileNotFoundError):
                continue
            assert reader.manifest == sound.manifest, (name, position)
            assert reader.state == sound.state, (name, position)
        path.write_bytes(content)


class Misfit(NamedTuple):
    """A run that is refused.

    Attributes:
        name: The run's name.
        expected: Parts of the error.
        settings: Changes to the configuration.
        resume: Checkpoint to resume from.
    """

    name: str
    expected: list[str]
    settings: dict[str, Any]
    resume: str | None = None


def test_runs_and_data_that_do_not_fit(finished: dict[str, Any], data_directory: Path, tmp_path: Path) -> None:
    root = Path(finished["run"]["directory"])
    checkpoint = str(RunFolder(root / "base").checkpoint(4))
    flipped = Path(shutil.copytree(data_directory, tmp_path / "flipped"))
    shard = min(flipped.glob("train-*.tar"))
    flip_byte(shard)
    incomplete = Path(shutil.copytree(data_directory, tmp_path / "incomplete"))
    min(incomplete.glob("train-*.tar")).unlink()
    other = Path(shutil.copytree(data_directory, tmp_path / "other"))
    index = other / "index.json"
    index.write_text(index.read_text().replace('"documents": 1', '"documents": 2', 1))
    nothing = tmp_path / "nothing"
    misfits = [
        Misfit("base", ["already holds checkpoints", "`resume` auto"], {}),
        Misfit("a", ["nowhere", "no such folder"], {}, str(root / "nowhere")),
        Misfit("b", ["model.encoding tape", "rope"], {"model.encoding": "rope"}, checkpoint),
        Misfit("c", ["model.mlp_size 40", "44"], {"model.mlp_size": 44}, checkpoint),
        Misfit("d", ["data.sequence_length 32", "16"], {"data.sequence_length": 16}, checkpoint),
        Misfit("n", ["data.random_offset True", "False"], {"data.random_offset": False}, checkpoint),
        Misfit("e", ["training.seed 1234", "5"], {"training.seed": 5}, checkpoint),
        Misfit("f", ["another set of shards", str(other)], {"data.path": str(other)}, checkpoint),
        Misfit("g", [str(nothing)], {"data.path": str(nothing)}),
        Misfit("h", ["MissingPath", "train-000000.tar"], {"data.path": str(incomplete)}),
        Misfit("i", [shard.name, "do not have their checksums"], {"data.path": str(flipped)}),
        Misfit("j", ["300 ids", "model.vocab_size is 299"], {"model.vocab_size": 299}),
        Misfit("k", ["sequence length is 1048576"], {"data.sequence_length": 2**20, "model.max_positions": 2**20}),
        Misfit("l", ["5 = micro_batch_size 4 x data-parallel ranks 2"], {"training.global_batch_size": 5}),
        Misfit(
            "diverged",
            ["TrainingDiverged", "step", "learning_rate"],
            {"optimizer.learning_rate": 1e30, "checkpoint.interval": 100},
        ),
    ]
    cases: list[dict[str, Any]] = []
    for misfit in misfits:
        case: dict[str, Any] = {"name": misfit.name, "set": misfit.settings}
        if misfit.resume is not None:
            case["resume"] = misfit.resume
        cases.append(case)

    results_by_rank = run_workers(TRAIN_CASES, 2, {"config": finished, "cases": cases}, tmp_path / "workers")

    for rank, results in enumerate(results_by_rank):
        for misfit, result in zip(misfits, results, strict=True):
            for part in misfit.expected:
                assert part in result.get("error", ""), (rank, misfit, result)
    assert list((root / "diverged").glob("checkpoints/*")) == [], "a run that diverged leaves no checkpoint of it"


@pytest.mark.slow
def test_a_command_shows_options_as_flags(finished: dict[str, Any], tmp_path: Path) -> None:
    """From Python, the same error names the argument: see the first misfit above."""
    finished["run"]["directory"] = str(Path(finished["run"]["directory"]) / "base")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(finished))
    command = [sys.executable, "-m", "megatape", "pretrain", "--config", str(config)]

    process = subprocess.run(command, capture_output=True, text=True, timeout=scaled(120))

    assert process.returncode == ExitStatus.USER_ERROR
    assert "already holds checkpoints: add --resume auto to continue" in process.stderr


def test_tokenizer_of_the_shards_is_checked(finished: dict[str, Any], data_directory: Path, tmp_path: Path) -> None:
    """A tokenizer other than the one that made the shards would be exported with the model."""
    copied = Path(shutil.copytree(data_directory, tmp_path / "copied"))
    flip_byte(copied / "tokenizer.model")
    case = {"name": "tokenizer", "set": {"data.path": str(copied)}}

    (result,) = run_cases(finished, [case], 1, tmp_path / "workers")

    assert "tokenizer.model" in result["error"]
