"""megatape ledger: recorded samples of a run against the order of its data."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatape.checkpoint.load.compatibility import check_order
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import parse_config
from megatape.run_folder import RunFolder
from megatape.tools.ledger import CorpusUsage
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.report_folders import train_with_own_module
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.training_cases import TRAIN_CASES

MIXTURE = {"a": {"weight": 2.0}, "b": {"weight": 1.0}}


@pytest.fixture(scope="module")
def runs(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run on two tensor- and two data-parallel ranks, resumed on one rank.

    Another run trains on a mixture and skips a step.
    """
    from tests.helpers.runs.small_run import small_config

    folder = tmp_path_factory.mktemp("proof")
    raw = small_config(data_directory, folder)
    raw["training"] |= {"micro_batch_size": 2}
    alone: dict[str, Any] = {
        "training.steps": 5,
        "checkpoint.interval": 3,
        "checkpoint.keep": 9,
        "data.sequence_length": 700,
        "model.max_positions": 700,
        # The model does not matter, so it is a quick one.
        "model.num_layers": 1,
        "model.encoding": "rope",
    }
    cases = [{"name": "alone", "set": alone | {"parallel.tp": 2}}]
    run_workers(TRAIN_CASES, 4, {"config": raw, "cases": cases}, folder / "four")
    last = folder / "alone" / "checkpoints" / "step-00000005"
    mixed = {name: corpus | {"path": str(data_directory)} for name, corpus in MIXTURE.items()}
    del raw["data"]["path"]
    cases = [{"name": "mixed", "set": {"data.mixture": mixed, "training.skip_samples": [[9, 9]]}}]
    run_workers(TRAIN_CASES, 1, {"config": raw, "cases": cases}, folder / "mixed-workers")
    raw["data"] = {"path": str(data_directory), "sequence_length": 32}
    cases = [{"name": "alone", "resume": str(last), "set": alone | {"training.steps": 8, "parallel.tp": 1}}]
    (result,) = run_workers(TRAIN_CASES, 1, {"config": raw, "cases": cases}, folder / "one")
    assert "error" not in result[0], result
    return folder


def test_a_resumed_run(runs: Path, command: Command) -> None:
    """Eight steps have eight samples each, and the data has 30."""
    status, text, errors = command("ledger", runs / "alone")
    assert status == 0, errors
    assert "steps:     1 to 8, samples 0 to 63, none missing" in text
    assert "digests:   8 recorded" in text
    assert "epochs 1 to 2 complete, each sample of 30 once in each; 4 of 30 samples" in text
    assert "skipped:   none" in text


def test_a_run_on_a_mixture_that_skipped_a_step(runs: Path, command: Command) -> None:
    status, text, errors = command("ledger", runs / "mixed")
    assert status == 0, errors
    assert "corpus a:" in text
    assert "corpus b:" in text
    assert "skipped:   steps 2 to 2, samples 8 to 15: skipped (training.skip_samples)" in text


def test_a_run_with_modules_of_a_user_s_own_needs_no_import(runs: Path, command: Command, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "own")
    shutil.copytree(runs / "alone", folder.directory)
    train_with_own_module(folder)
    status, text, errors = command("ledger", folder.directory)
    assert status == 0, errors
    assert "steps:     1 to 8, samples 0 to 63, none missing" in text


def without_step_3(lines: list[str]) -> list[str]:
    return [*lines[:2], *lines[3:]]


def without_first_steps(lines: list[str]) -> list[str]:
    return lines[2:]


def with_another_digest(lines: list[str]) -> list[str]:
    entry = json.loads(lines[4])
    return [*lines[:4], json.dumps(entry | {"digest": entry["digest"] + 1})]


def without_steps(lines: list[str]) -> list[str]:
    return []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_step_3, "step 4 follows step 2: lines were lost"),
        (without_first_steps, "step 3 follows step 0: lines were lost, or are in another folder"),
        (with_another_digest, "step 5, samples 32 to 39: the run has recorded the digest"),
        (without_steps, "no step is recorded"),
    ],
)
def test_wrong_metrics_are_refused(
    runs: Path, command: Command, tmp_path: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    source = RunFolder(runs / "alone")
    damaged = RunFolder(tmp_path / "run")
    damaged.directory.mkdir()
    damaged.config.write_bytes(source.config.read_bytes())
    lines = change(source.metrics.read_text().splitlines())
    damaged.metrics.write_text("".join(f"{line}\n" for line in lines))

    status, _, errors = command("ledger", damaged.directory)

    assert status == 2
    assert message in errors


def test_a_repeated_sample_is_an_error() -> None:
    corpus = CorpusUsage(3)
    for index in (2, 0, 1, 0):
        corpus.take(index)
    with pytest.raises(ValueError, match="sample 0 for the second time in epoch 2"):
        corpus.take(0)


def test_another_order_is_refused(runs: Path) -> None:
    checkpoint = RunFolder(runs / "alone").checkpoint(3)
    state = CheckpointReader(checkpoint).state
    last = state.last_step
    assert last is not None
    assert (last.first, last.last) == (16, 23)
    config = parse_config(state.config, "state")
    order = open_run_data(config).train.order
    check_order(checkpoint, last, order)
    check_order(checkpoint, None, order)
    state.config["training"]["seed"] += 1
    other = open_run_data(parse_config(state.config, "state")).train.order
    with pytest.raises(ValueError, match="samples 16 to 23, of its last step, had the digest"):
        check_order(checkpoint, last, other)
