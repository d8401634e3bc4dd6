"""The batch grows by tokens: the same samples in the same order, learning rates by tokens, exact when resumed or branched."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config import load_config
from megatape.run_folder import RunFolder, read_steps
from megatape.utils.units import format_count
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import compare, step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

LENGTH = 32
SIZES = [4, 4, 4, 8, 8, 16, 16, 16]  # 10 samples end in the third step, and 22 in the fifth
WARMUP = [{"tokens": 10 * LENGTH, "samples": 4}, {"tokens": 22 * LENGTH, "samples": 8}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batch-warmup")


@pytest.fixture
def raw(raw_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Eight steps, with a checkpoint after each; other runs are beside it."""
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"] |= {"steps": 8, "global_batch_size": 16, "micro_batch_size": 2, "batch_warmup": WARMUP}
    raw_config["optimizer"]["eps"] = 1e-3
    raw_config["schedule"] = {"kind": "constant", "warmup_tokens": 16 * LENGTH}
    raw_config["checkpoint"] = {"interval": 1, "keep": 9}
    if not (folder / "straight").exists():
        wsd = {"schedule.kind": "wsd", "schedule.decay_tokens": (8 + 16) * LENGTH, "training.steps": 6}
        second = {"resume": str(folder / "straight/checkpoints/step-00000002")}
        cases = [{"name": "straight"}, {"name": "resumed"} | second, {"name": "decayed", "set": wsd}]
        two = [{"name": "two", "set": {"zero.stage": 2}}]
        for ranks, some in ((1, cases), (2, two)):
            results = run_workers(TRAIN_CASES, ranks, {"config": raw_config, "cases": some}, folder / f"workers-{ranks}")[0]
            assert not any("error" in result for result in results), results
    return raw_config


def lines(run: Path) -> list[dict[str, Any]]:
    return list(read_steps(RunFolder(run).metrics))


@pytest.mark.slow
def test_steps_grow(raw: dict[str, Any], folder: Path, command: Command) -> None:
    """In samples, tokens and the ledger; the learning rate follows the tokens, and would be 1/8, 2/8, ... by steps."""
    found = lines(folder / "straight")
    samples = list(accumulate(SIZES))
    assert [line["samples"] for line in found] == samples
    assert [line["tokens"] for line in found] == [LENGTH * count for count in samples]
    assert [round(line["lr"] / 1e-2, 9) for line in found] == [min(1.0, count / 16) for count in samples]
    status, printed, errors = command("ledger", folder / "straight")
    assert status == 0 and f"steps:     1 to 8, samples 0 to {sum(SIZES) - 1}, none missing" in printed, errors


def test_resumes_exactly(raw: dict[str, Any], folder: Path) -> None:
    """In the middle of the warm-up, bit for bit; and two ranks train the same."""
    fields = ("step", "loss", "grad_norm", "lr", "samples", "digest")
    straight, resumed = (
        [[line[field] for field in fields] for line in lines(folder / name)] for name in ("straight", "resumed")
    )
    assert resumed == straight[2:]
    for kind in ("weight", "exp_avg", "exp_avg_sq"):
        expected, found = (step_tensors(folder / name, kind, 8) for name in ("straight", "resumed"))
        assert expected and all(torch.equal(found[name], tensor) for name, tensor in expected.items()), kind
    compare(folder / "straight", folder / "two", step=8)


def test_branches_in_the_warmup(raw: dict[str, Any], folder: Path, command: Command) -> None:
    """A decay of 9 samples after the fourth step is one step of 8 and one of 16; it equals a run with this decay."""
    status, _, errors = command(
        "branch", folder / "straight/checkpoints/step-00000004", "--decay-tokens", 9 * LENGTH, "--out", folder / "branch"
    )
    assert status == 0, errors
    config = load_config(folder / "branch/config.json")
    assert (config.training.steps, config.schedule.lengths["decay"]) == (6, 24 * LENGTH)
    raw = config.model_dump() | {"run": {"directory": str(folder)}}
    payload = {"config": raw, "cases": [{"name": "branch", "resume": "auto"}]}
    assert run_workers(TRAIN_CASES, 1, payload, folder / "workers-branch")[0] == [{"step": 4, "samples": 20}]
    for field in ("step", "loss", "lr", "samples", "digest"):
        assert [line[field] for line in lines(folder / "branch")] == [line[field] for line in lines(folder / "decayed")], field
    assert [round(line["lr"] / 1e-2, 9) for line in lines(folder / "branch")][4:] == [1.0, round(2 / 3, 9)]


def test_refusals_and_plan(raw: dict[str, Any], folder: Path, command: Command, tmp_path: Path) -> None:
    """In a line each, with the arithmetic."""
    config = tmp_path / "config.json"
    cluster = {"nodes": 1, "gpus_per_node": 2, "gpu": "h100"}
    config.write_text(json.dumps(raw | {"cluster": cluster}))
    status, printed, errors = command("plan", "--config", config)
    assert status == 0 and "until 320 tokens" in printed and "4 samples" in printed, errors
    assert f"{format_count(LENGTH * sum(SIZES))} in 8 steps" in printed
    for changes, told in (
        ([{"tokens": 10, "samples": 6}], "batch_warmup 6 = micro_batch_size 2 x data-parallel ranks 2 x accumulation 1.5"),
        ([{"tokens": 10, "samples": 16}], "batch_warmup ends with 16 samples: give fewer than global_batch_size 16"),
        (WARMUP[::-1], "batch_warmup has tokens=320 samples=4 after tokens=704 samples=8: both must grow"),
        ([{"steps": 10, "samples": 4}], "training.batch_warmup.0.steps: unknown key; "),
    ):
        status, _, errors = command("plan", "--config", config, "--set", f"training.batch_warmup={json.dumps(changes)}")
        assert status == 2 and told in errors, errors
