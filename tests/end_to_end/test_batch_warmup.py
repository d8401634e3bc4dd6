"""The batch grows by tokens: the same samples in the same order, learning rates by tokens, exact when resumed or branched."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from megatape.config import load_config
from megatape.run_folder import RunFolder, read_steps
from megatape.utils.text.units import format_count
from tests.helpers.processes.command import Command
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import KINDS, assert_identical, compare, step_tensors

LENGTH = 32
LEARNING_RATE = 1e-2
SIZES = [4, 4, 4, 8, 8, 16, 16, 16]  # 10 samples end in the third step, and 22 in the fifth
WARMUP = [{"tokens": 10 * LENGTH, "samples": 4}, {"tokens": 22 * LENGTH, "samples": 8}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batch-warmup")


@pytest.fixture
def raw(raw_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the configuration for runs in `folder`: eight steps, with a checkpoint after each."""
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"] |= {"steps": 8, "global_batch_size": 16, "micro_batch_size": 2, "batch_warmup": WARMUP}
    raw_config["optimizer"]["eps"] = 1e-3
    raw_config["schedule"] = {"kind": "constant", "warmup_tokens": 16 * LENGTH}
    raw_config["checkpoint"] = {"interval": 1, "keep": 9}
    if not (folder / "straight").exists():
        train_all(raw_config, folder)
    return raw_config


def train_all(raw_config: dict[str, Any], folder: Path) -> None:
    decay = {"schedule.kind": "wsd", "schedule.decay_tokens": (8 + 16) * LENGTH, "training.steps": 6}
    on_one_rank: list[dict[str, Any]] = [
        {"name": "straight"},
        {"name": "resumed", "resume": str(RunFolder(folder / "straight").checkpoint(2))},
        {"name": "decayed", "set": decay},
    ]
    on_two_ranks = [{"name": "two ranks", "set": {"zero.stage": 2}}]
    assert_no_errors(run_cases(raw_config, on_one_rank, 1, folder / "workers-1"))
    assert_no_errors(run_cases(raw_config, on_two_ranks, 2, folder / "workers-2"))


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return list(read_steps(RunFolder(run).metrics))


def select(entries: list[dict[str, Any]], *fields: str) -> list[list[Any]]:
    return [[entry[field] for field in fields] for entry in entries]


def relative_rates(entries: list[dict[str, Any]]) -> list[float]:
    return [round(entry["lr"] / LEARNING_RATE, 9) for entry in entries]


@pytest.mark.slow
def test_steps_grow(raw: dict[str, Any], folder: Path, command: Command) -> None:
    """Samples, tokens and the ledger grow. The learning rate follows the tokens: by steps it would be 1/8, 2/8, ..."""
    metrics = metrics_of(folder / "straight")
    expected_samples = list(accumulate(SIZES))
    assert [entry["samples"] for entry in metrics] == expected_samples
    assert [entry["tokens"] for entry in metrics] == [LENGTH * samples for samples in expected_samples]
    assert relative_rates(metrics) == [min(1.0, samples / 16) for samples in expected_samples]

    status, output, errors = command("ledger", folder / "straight")

    assert status == 0, errors
    assert f"steps:     1 to 8, samples 0 to {sum(SIZES) - 1}, none missing" in output


def test_resumes_exactly_in_the_middle_of_the_warmup(raw: dict[str, Any], folder: Path) -> None:
    fields = ("step", "loss", "grad_norm", "lr", "samples", "digest")
    straight = select(metrics_of(folder / "straight"), *fields)
    assert select(metrics_of(folder / "resumed"), *fields) == straight[2:]
    for kind in KINDS:
        expected = step_tensors(folder / "straight", kind, step=8)
        assert_identical(step_tensors(folder / "resumed", kind, step=8), expected, kind)


def test_two_ranks_train_the_same(raw: dict[str, Any], folder: Path) -> None:
    compare(folder / "straight", folder / "two ranks", step=8)


def test_branches_in_the_warmup(raw: dict[str, Any], folder: Path, command: Command) -> None:
    """A decay of 9 samples after the fourth step is one step of 8 and one of 16. It equals a run with this decay."""
    checkpoint = RunFolder(folder / "straight").checkpoint(4)
    status, _, errors = command("branch", checkpoint, "--decay-tokens", 9 * LENGTH, "--output", folder / "branch")
    assert status == 0, errors
    config = load_config(folder / "branch/config.json")
    assert config.training.steps == 6
    assert config.schedule.lengths["decay"] == 24 * LENGTH

    branch_config = config.model_dump() | {"run": {"directory": str(folder)}}
    cases = [{"name": "branch", "resume": "auto"}]
    results = run_cases(branch_config, cases, 1, folder / "workers-branch")

    assert results == [{"step": 4, "samples": 20}]
    branch = metrics_of(folder / "branch")
    fields = ("step", "loss", "lr", "samples", "digest")
    assert select(branch, *fields) == select(metrics_of(folder / "decayed"), *fields)
    assert relative_rates(branch)[4:] == [1.0, round(2 / 3, 9)]


@pytest.fixture
def plan_config(raw: dict[str, Any], tmp_path: Path) -> Path:
    config = tmp_path / "config.json"
    cluster = {"nodes": 1, "gpus_per_node": 2, "gpu": "h100"}
    config.write_text(json.dumps(raw | {"cluster": cluster}))
    return config


def test_a_plan_shows_the_warmup(plan_config: Path, command: Command) -> None:
    status, output, errors = command("plan", "--config", plan_config)

    assert status == 0, errors
    assert "until 320 tokens" in output
    assert "4 samples" in output
    assert f"{format_count(LENGTH * sum(SIZES))} in 8 steps" in output


@pytest.mark.parametrize(
    ("warmup", "expected"),
    [
        ([{"tokens": 10, "samples": 6}], "batch_warmup 6 = micro_batch_size 2 x data-parallel ranks 2 x accumulation 1.5"),
        ([{"tokens": 10, "samples": 16}], "batch_warmup ends with 16 samples: give fewer than global_batch_size 16"),
        (WARMUP[::-1], "batch_warmup has tokens=320 samples=4 after tokens=704 samples=8: both must grow"),
        ([{"steps": 10, "samples": 4}], "training.batch_warmup.0.steps: unknown key; "),
    ],
    ids=["accumulation", "full size", "order", "unknown key"],
)
def test_an_impossible_warmup_is_refused(
    plan_config: Path, command: Command, warmup: list[dict[str, int]], expected: str
) -> None:
    """The error shows the arithmetic."""
    status, _, errors = command("plan", "--config", plan_config, "--set", f"training.batch_warmup={json.dumps(warmup)}")

    assert status == 2
    assert expected in errors
