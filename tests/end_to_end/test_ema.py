"""Averaging the weights: the same in every layout, saved, resumed, moved, evaluated and exported."""

from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.checkpoint.format.features import FEATURES_FORMAT
from megatape.checkpoint.format.manifest import load_manifest
from megatape.checkpoint.load.reader import CheckpointReader, EmaReader
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.run_folder import RunFolder
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import Bound, assert_close
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import assert_all_close, assert_identical, read_entries, saved_steps, step_tensors
from tests.helpers.runs.trainers import trainer_without_lease

DECAY = 0.5
LAST_STEP = 3
MUON = {"optimizer.kind": "muon"}
FOUR_RANKS = {"zero.stage": 3, "parallel.tp": 2}
OFFLOADED = {"zero.stage": 2, "zero.offload_optimizer": True}
WITHOUT = {"optimizer.ema_decay": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ema")


@pytest.fixture
def runs(raw_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the configuration for runs in `folder`: three steps, with a checkpoint and an evaluation after each."""
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"] |= {"steps": LAST_STEP, "micro_batch_size": 2}
    raw_config["optimizer"] |= {"eps": 1e-3, "ema_decay": DECAY}
    raw_config["zero"] = {"stage": 0}
    raw_config["checkpoint"] = {"interval": 1, "keep": 9}
    raw_config["evaluation"]["interval"] = 1
    if not (folder / "plain").exists():
        train_all(raw_config, folder)
    return raw_config


def train_all(raw: dict[str, Any], folder: Path) -> None:
    second = str(RunFolder(folder / "plain").checkpoint(2))
    second_without = str(RunFolder(folder / "without").checkpoint(2))
    on_one: list[dict[str, Any]] = [
        {"name": "start", "only_save": True},
        {"name": "plain"},
        {"name": "plain-muon", "set": MUON},
        {"name": "without", "set": WITHOUT},
        {"name": "skipped", "set": {"training.skip_samples": [[8, 15]]}},
        {"name": "resumed", "resume": second},
        {"name": "begun", "resume": second_without},
    ]
    on_two: list[dict[str, Any]] = [
        {"name": "stage1", "set": {"zero.stage": 1}},
        {"name": "offloaded-muon", "set": OFFLOADED | MUON},
        {"name": "moved", "set": {"zero.stage": 2}, "resume": second},
    ]
    train(raw, 1, on_one)
    train(raw, 2, on_two)


def train(raw: dict[str, Any], num_ranks: int, cases: list[dict[str, Any]]) -> None:
    logs = Path(raw["run"]["directory"]) / f"workers-{num_ranks}"
    assert_no_errors(run_cases(raw, cases, num_ranks, logs, timeout=300))


def averages_of(run: Path, step: int = LAST_STEP) -> dict[str, torch.Tensor]:
    averages = step_tensors(run, "ema", step)
    assert averages.keys() == step_tensors(run, "weight", step).keys()
    return averages


def test_average_of_the_weights_after_each_step(runs: dict[str, Any], folder: Path) -> None:
    """The average starts with the initial weights, and includes the weights after each update."""
    expected = step_tensors(folder / "start", "weight", 0)
    for step in (1, 2, 3):
        for name, weight in step_tensors(folder / "plain", "weight", step).items():
            expected[name] = DECAY * expected[name] + (1 - DECAY) * weight  # exact, but for one rounding
        assert_all_close(averages_of(folder / "plain", step), expected, bounds.EMA, step)


def test_a_skipped_step_does_not_count(runs: dict[str, Any], folder: Path) -> None:
    """Step 2 is skipped, so no checkpoint is written after it. Counting it would move the average towards the weights."""
    run = folder / "skipped"
    assert saved_steps(RunFolder(run)) == [3, 1]
    average = averages_of(run, 1)
    weights = step_tensors(run, "weight", 3)

    expected = {name: DECAY * tensor + (1 - DECAY) * weights[name] for name, tensor in average.items()}
    assert_all_close(averages_of(run, 3), expected, bounds.EMA)


@pytest.mark.numerics
@pytest.mark.parametrize("name", ["stage1", "moved", "offloaded-muon"])
def test_equals_one_process(runs: dict[str, Any], folder: Path, name: str) -> None:
    """Fails if bounds are applied after the average."""
    compare_with_plain(folder, name)


@pytest.mark.slow
@pytest.mark.numerics
def test_four_ranks_equal_one_process(runs: dict[str, Any], folder: Path) -> None:
    """Fails if a ZeRO-3 sub-group counts the weights twice."""
    cases: list[dict[str, Any]] = [
        {"name": "tensor", "set": FOUR_RANKS},
        {"name": "tensor-muon", "set": FOUR_RANKS | MUON},
        {"name": "tensor-without", "set": FOUR_RANKS | WITHOUT},
    ]
    train(runs, 4, cases)

    compare_with_plain(folder, "tensor")
    compare_with_plain(folder, "tensor-muon")
    check_identical(folder, "tensor", "tensor-without", ("weight", "exp_avg"))


def compare_with_plain(folder: Path, name: str) -> None:
    """Compare a run's averages with those from one process."""
    plain = folder / "plain"
    bound: Bound = bounds.TRAINED
    if name.endswith("muon"):
        plain = folder / "plain-muon"
        bound = bounds.MUON_TRAINED
    assert_all_close(averages_of(folder / name), averages_of(plain), bound, name)
    loss = last_metrics(folder / name)["ema_validation_loss"]
    expected_loss = last_metrics(plain)["ema_validation_loss"]
    assert_close([loss], [expected_loss], bound, what=name)


def last_metrics(run: Path) -> dict[str, Any]:
    return read_entries(run / "metrics.jsonl")[-1]


def check_identical(folder: Path, run: str, other: str, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        expected = step_tensors(folder / run, kind, LAST_STEP)
        actual = step_tensors(folder / other, kind, LAST_STEP)
        assert_identical(actual, expected, (other, kind))


def test_resumes_bit_for_bit(runs: dict[str, Any], folder: Path) -> None:
    check_identical(folder, "plain", "resumed", ("weight", "ema", "exp_avg"))


def test_an_average_leaves_the_weights(runs: dict[str, Any], folder: Path) -> None:
    check_identical(folder, "plain", "without", ("weight", "exp_avg"))


def test_starts_with_the_weights_of_a_checkpoint_that_has_no_average(runs: dict[str, Any], folder: Path) -> None:
    before = step_tensors(folder / "without", "weight", 2)
    after = step_tensors(folder / "begun", "weight", 3)
    expected = {name: DECAY * weight + (1 - DECAY) * after[name] for name, weight in before.items()}
    assert_all_close(averages_of(folder / "begun"), expected, bounds.EMA)


def test_is_evaluated_and_exported(runs: dict[str, Any], folder: Path, command: Command) -> None:
    """Training reports the exported average's loss, not the weights' own."""
    checkpoint = RunFolder(folder / "plain").checkpoint(LAST_STEP)
    status, output, errors = command("export", checkpoint, folder / "exported", "--weights", "ema")
    assert status == 0, errors
    assert "exported the moving average of step 3" in output

    runs["training"]["init_from"] = str(folder / "exported")
    runs["run"]["directory"] = str(folder / "evaluated")
    ((loss, ema_loss),) = run_workers("tests.end_to_end.test_ema:evaluate_at_start", 1, runs, folder / "workers-evaluated")

    assert loss == ema_loss, "the average starts with the weights"
    metrics = last_metrics(folder / "plain")
    assert_close([metrics["ema_validation_loss"]], [loss], bounds.TRAINED)
    assert abs(metrics["validation_loss"] - loss) > 1e-2


def evaluate_at_start(raw: dict[str, Any], topology: Topology) -> tuple[float, float | None]:
    """Evaluate a new run. Returns the losses with its weights and with their average."""
    run = trainer_without_lease(parse_config(raw, "evaluated"), topology)
    validation = run.evaluate()
    return validation.loss, validation.ema_loss


def test_a_run_without_an_average_has_none_to_export(runs: dict[str, Any], folder: Path, command: Command) -> None:
    checkpoint = RunFolder(folder / "without").checkpoint(LAST_STEP)

    status, _, errors = command("export", checkpoint, folder / "none", "--weights", "ema")

    assert status == 2
    assert errors.count("\n") == 1
    assert "a run with optimizer.ema_decay" in errors
    assert not (folder / "none").exists()


def test_earlier_versions_refuse_the_format(runs: dict[str, Any], folder: Path) -> None:
    """A checkpoint with an average has a later format, one without does not."""
    without = load_manifest(RunFolder(folder / "without").checkpoint(LAST_STEP))
    assert without.features == ()
    with_average = load_manifest(RunFolder(folder / "plain").checkpoint(LAST_STEP))
    assert with_average.features == ("ema",)
    assert with_average.format == FEATURES_FORMAT


def test_frozen_weights_are_their_own_average(runs: dict[str, Any], folder: Path) -> None:
    """The checkpoint has no average for frozen weights."""
    case = {"name": "frozen", "set": {"training.frozen": ["embeddings"], "training.steps": 1, "zero.stage": 3}}

    assert_no_errors(run_cases(runs, [case], 1, folder / "workers-frozen"))

    checkpoint = RunFolder(folder / "frozen").checkpoint(1)
    reader = CheckpointReader(checkpoint)
    ema = EmaReader(checkpoint)
    without_average = set(reader.names()) - step_tensors(folder / "frozen", "ema", 1).keys()
    assert without_average == {"embedding.weight"}
    assert torch.equal(ema.tensor("embedding.weight"), reader.tensor("embedding.weight"))
    assert not torch.equal(ema.tensor("head.weight"), reader.tensor("head.weight"))
