"""Resuming: bit for bit on the same ranks, with exact weights and moments on others."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from megatape.config import load_config, parse_config
from megatape.distributed.topology import Topology
from megatape.run_folder import RunFolder
from megatape.training.start import Start
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import comparable_metrics
from tests.helpers.runs.trainers import trainer_without_lease

SETTINGS: dict[str, dict[str, Any]] = {
    "stage3_bfloat16": {"zero.stage": 3, "training.precision": "bfloat16"},
    "stage0": {"zero.stage": 0},
    "stage3": {"zero.stage": 3},
    "stage2_bfloat16": {"zero.stage": 2, "training.precision": "bfloat16"},
}
QUICK = ["stage3_bfloat16", "stage0"]
SLOW = ["stage3", "stage2_bfloat16"]
TENSOR_FILES = ("weight-00000", "exp_avg-00000", "exp_avg_sq-00000")


@pytest.mark.parametrize("names", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)], ids=" ".join)
def test_resumed_twice_equals_straight(raw_config: dict[str, Any], tmp_path: Path, names: list[str]) -> None:
    """6 steps in one go = 2, then to 4, then to 6: weights, both moments, generators and every logged number."""
    raw_config["training"]["steps"] = 6
    raw_config["checkpoint"] = {"interval": 2, "keep": 10}
    root = Path(raw_config["run"]["directory"])

    def train(suffix: str, origin_suffix: str, step: int) -> None:
        """Train a run of each setting, from the checkpoint of a step in another run if the step is not 0."""
        if step > 0:
            for name in names:
                copy_checkpoint(root / f"{name}{origin_suffix}", root / f"{name}{suffix}", step)
        cases = [{"name": f"{name}{suffix}", "set": SETTINGS[name], "resume": "auto"} for name in names]
        starts = run_cases(raw_config, cases, 2, tmp_path / f"workers{suffix}")
        assert [start["step"] for start in starts] == [step] * len(names)

    train("", "", 0)
    train("-once", "", 2)
    train("-twice", "-once", 4)

    for name in names:
        straight = RunFolder(root / name)
        straight_metrics = comparable_metrics(straight)
        for suffix in ("-once", "-twice"):
            resumed = RunFolder(root / f"{name}{suffix}")
            for file in (*TENSOR_FILES, "rng"):
                assert recorded_hash(resumed, 6, file) == recorded_hash(straight, 6, file), (name, suffix, file)
            assert resumed.position_view(6).read_bytes() == straight.position_view(6).read_bytes(), (name, suffix)
            metrics = comparable_metrics(resumed)
            assert metrics == straight_metrics[-len(metrics) :]


def test_fewer_steps_than_are_done_change_nothing(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The folder keeps the configuration with which it was trained."""
    raw_config["training"]["steps"] = 3
    cases: list[dict[str, Any]] = [
        {"name": "run", "resume": "auto"},
        {"name": "run", "resume": "auto", "set": {"training.steps": 2}},
    ]

    run_cases(raw_config, cases, 1, tmp_path / "workers")

    config = load_config(Path(raw_config["run"]["directory"]) / "run" / "config.json")
    assert config.training.steps == 3
    assert "already at step 3 of training.steps 2" in (tmp_path / "workers" / "rank0.log").read_text()


def test_generators_follow_the_seed(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Ranks have different generators. Numbers drawn before the run, for example by a launcher's imports, do not matter."""
    rank0, rank1 = run_workers("tests.end_to_end.test_resume:begin_twice", 2, raw_config, tmp_path / "workers")

    assert rank0[0] == rank0[1]
    assert rank1[0] == rank1[1]
    assert rank0[0] != rank1[0]


def begin_twice(raw: dict[str, Any], topology: Topology) -> list[str]:
    """Return the generator state of a new run, built in two states of the process."""
    config = parse_config(raw, "test")
    states = []
    for seed in range(2):
        torch.manual_seed(seed)
        trainer_without_lease(config, topology, Start("auto"))
        states.append(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
    return states


class Move(NamedTuple):
    """Ranks to which a checkpoint moves."""

    num_ranks: int
    tensor: int
    stage: int


MOVES = [Move(1, 1, 1), Move(4, 1, 2), Move(2, 2, 3), Move(2, 1, 0), Move(4, 4, 3)]


@pytest.mark.slow
def test_checkpoints_move_between_topologies(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A run of 2 data x 2 tensor ranks at stage 3 goes through all MOVES with the same masters and moments to the bit.

    So exports are the same, too. A run that continues has the samples of the first one, and its losses up to the order of
    float32 sums.
    """
    raw_config["training"] |= {"steps": 8, "micro_batch_size": 2}
    raw_config["checkpoint"] = {"interval": 4, "keep": 10}
    first = {"name": "first", "set": {"zero.stage": 3, "parallel.tp": 2}}
    assert_no_errors(run_cases(raw_config, [first], 4, tmp_path / "workers-first"))
    root = Path(raw_config["run"]["directory"])
    first_folder = RunFolder(root / "first")
    expected_metrics = comparable_metrics(first_folder)[4:]

    previous = root / "first"
    for number, move in enumerate(MOVES):
        moved = root / f"move{number}"
        continued = root / f"move{number}-continued"
        changes = {"zero.stage": move.stage, "parallel.tp": move.tensor}
        checkpoint = copy_checkpoint(previous, moved, 4)
        cases: list[dict[str, Any]] = [
            {"name": moved.name, "set": changes, "resume": "auto", "only_save": True},
            {"name": continued.name, "set": changes, "resume": str(checkpoint)},
        ]
        starts = run_cases(raw_config, cases, move.num_ranks, tmp_path / f"workers{number}")
        assert starts == [{"step": 4, "samples": 32}] * 2
        for file in TENSOR_FILES:
            assert recorded_hash(RunFolder(moved), 4, file) == recorded_hash(first_folder, 4, file), (move, file)
        metrics = comparable_metrics(RunFolder(continued))
        assert [entry["samples"] for entry in metrics] == [entry["samples"] for entry in expected_metrics]
        for entry, expected in zip(metrics, expected_metrics, strict=True):
            assert_close([entry["loss"]], [expected["loss"]], bounds.TRAINED, what=move)
        previous = moved


def copy_checkpoint(source: Path, destination: Path, step: int) -> Path:
    """Copy a checkpoint from one run to another. Returns the original."""
    original = RunFolder(source).checkpoint(step)
    shutil.copytree(original, RunFolder(destination).checkpoint(step))
    return original


def recorded_hash(folder: RunFolder, step: int, file: str) -> str:
    """Return the SHA-256 in a manifest of a safetensors file."""
    manifest = json.loads((folder.checkpoint(step) / "manifest.json").read_text())
    sha256: str = manifest["files"][f"{file}.safetensors"]["sha256"]
    return sha256
