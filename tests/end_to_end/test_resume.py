"""Resuming: bit for bit at a fixed topology, exact masters on another, and never from a corrupted checkpoint."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config import load_config, parse_config
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.training_cases import TRAIN_CASES

KINDS: dict[str, dict[str, Any]] = {
    "stage3_bfloat16": {"zero.stage": 3, "training.precision": "bfloat16"},
    "stage0": {"zero.stage": 0},
    "stage3": {"zero.stage": 3},
    "stage2_bfloat16": {"zero.stage": 2, "training.precision": "bfloat16"},
}


@pytest.mark.parametrize("kinds", [[*KINDS][:2], pytest.param([*KINDS][2:], marks=pytest.mark.slow)], ids=" ".join)
def test_resumed_twice_equals_straight(raw_config: dict[str, Any], tmp_path: Path, kinds: list[str]) -> None:
    """6 steps in one go = 2, then to 4, then to 6: weights, both moments, generators and every logged number."""
    raw_config["training"]["steps"] = 6
    raw_config["checkpoint"] = {"interval": 2, "keep": 10}
    root = Path(raw_config["run"]["directory"])
    for part, (origin, step) in {"": ("", 0), "-once": ("", 2), "-twice": ("-once", 4)}.items():
        for kind in kinds:
            if step:
                _copy(root, kind + origin, kind + part, step)
        cases = [{"name": kind + part, "set": KINDS[kind], "resume": "auto"} for kind in kinds]
        starts = run_workers(TRAIN_CASES, 2, {"config": raw_config, "cases": cases}, tmp_path / f"workers{part}")[0]
        assert [start["step"] for start in starts] == [step] * len(kinds)

    for kind in kinds:
        for part in ("-once", "-twice"):
            for file in ("weight-00000", "exp_avg-00000", "exp_avg_sq-00000", "rng"):
                assert _hash(root / (kind + part), 6, file) == _hash(root / kind, 6, file), (kind, part, file)
            views = (RunFolder(root / name).position_view(6).read_bytes() for name in (kind, kind + part))
            assert len(set(views)) == 1, (kind, part)
            expected = _numbers(root / kind)
            found = _numbers(root / (kind + part))
            assert found == expected[-len(found) :]


def test_fewer_steps_than_are_done(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is trained, so the folder keeps the configuration by which it was."""
    raw_config["training"]["steps"] = 3
    cases = [{"name": "run", "resume": "auto"}, {"name": "run", "resume": "auto", "set": {"training.steps": 2}}]
    run_workers(TRAIN_CASES, 1, {"config": raw_config, "cases": cases}, tmp_path / "workers")
    assert load_config(Path(raw_config["run"]["directory"]) / "run" / "config.json").training.steps == 3
    assert "already at step 3 of training.steps 2" in (tmp_path / "workers" / "rank0.log").read_text()


def test_generators_follow_the_seed(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Whatever has drawn from them before the run, as other launchers' imports may; ranks have different ones."""
    states = run_workers("tests.end_to_end.test_resume:begin_twice", 2, raw_config, tmp_path / "workers")
    assert states[0][0] == states[0][1] != states[1][0] == states[1][1]


def begin_twice(raw: dict[str, Any], topology: Topology) -> list[str]:
    """Generator state of a new run, from two states before it."""
    config = parse_config(raw, "test")
    states = []
    for seed in range(2):
        torch.manual_seed(seed)
        build_trainer(
            config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease), Start("auto")
        )
        states.append(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
    return states


@pytest.mark.slow
def test_other_topology(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """2 data x 2 tensor ranks at stage 3 -> 1 rank at stage 1 -> 4 data ranks at stage 2 -> 2 tensor ranks at stage 3 -> ...:
    the same masters and moments to the bit (and so the same exports), and the same samples, so the same losses as going on at
    the old topology (up to the order of float32 sums)."""
    raw_config["training"] |= {"steps": 8, "micro_batch_size": 2}
    raw_config["checkpoint"] = {"interval": 4, "keep": 10}
    first = {"name": "first", "set": {"zero.stage": 3, "parallel.tp": 2}}
    run_workers(TRAIN_CASES, 4, {"config": raw_config, "cases": [first]}, tmp_path / "w0")
    root = Path(raw_config["run"]["directory"])
    previous = "first"
    for number, (world_size, tensor_size, stage) in enumerate([(1, 1, 1), (4, 1, 2), (2, 2, 3), (2, 1, 0), (4, 4, 3)]):
        name = f"move{number}"
        changes = {"zero.stage": stage, "parallel.tp": tensor_size}
        source = _copy(root, previous, name, 4)
        cases = [
            {"name": name, "set": changes, "resume": "auto", "only_save": True},
            {"name": f"{name}-on", "set": changes, "resume": str(source)},
        ]
        starts = run_workers(TRAIN_CASES, world_size, {"config": raw_config, "cases": cases}, tmp_path / f"w{number + 1}")[0]
        assert starts == [{"step": 4, "samples": 32}] * 2
        for file in ("weight-00000", "exp_avg-00000", "exp_avg_sq-00000"):
            assert _hash(root / name, 4, file) == _hash(root / "first", 4, file), (name, file)
        expected = _numbers(root / "first")[4:]
        found = _numbers(root / f"{name}-on")
        assert [entry["samples"] for entry in found] == [entry["samples"] for entry in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert_close([ours["loss"]], [theirs["loss"]], bounds.TRAINED, what=name)
        previous = name


def _copy(root: Path, source: str, destination: str, step: int) -> Path:
    """Give the run `destination` a checkpoint of the run `source`; returns the original."""
    folder = Path("checkpoints") / f"step-{step:08d}"
    shutil.copytree(root / source / folder, root / destination / folder)
    return root / source / folder


def _hash(run: Path, step: int, file: str) -> str:
    manifest = json.loads((run / "checkpoints" / f"step-{step:08d}" / "manifest.json").read_text())
    return manifest["files"][f"{file}.safetensors"]["sha256"]


def _numbers(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the wall-clock times and the memory of the process."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in entry.items() if key not in ("seconds", "peak_memory")} for entry in entries]
