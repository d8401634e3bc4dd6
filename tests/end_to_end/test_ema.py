"""The moving average of the weights: the same in every layout, saved, resumed, moved, evaluated and exported."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.checkpoint.features import FEATURES_FORMAT
from megatape.checkpoint.manifest import load_manifest
from megatape.checkpoint.reader import CheckpointReader, EmaReader
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.startup.build_trainer import build_trainer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.run_folders import step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

DECAY = 0.5
MUON = {"optimizer.kind": "muon"}
FOUR = {"zero.stage": 3, "parallel.tp": 2}
OFFLOADED = {"zero.stage": 2, "zero.offload_optimizer": True}
WITHOUT = {"optimizer.ema_decay": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ema")


@pytest.fixture
def runs(raw_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The configuration of the runs in `folder`: of three steps with a checkpoint and an evaluation after each."""
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"] |= {"steps": 3, "micro_batch_size": 2}
    raw_config["optimizer"] |= {"eps": 1e-3, "ema_decay": DECAY}
    raw_config["zero"] = {"stage": 0}
    raw_config["checkpoint"] = {"interval": 1, "keep": 9}
    raw_config["evaluation"]["interval"] = 1
    if not (folder / "plain").exists():
        second = {"resume": str(folder / "plain/checkpoints/step-00000002")}
        alone: list[dict[str, Any]] = [
            {"name": "start", "only_save": True},
            {"name": "plain"},
            {"name": "plain-muon", "set": MUON},
            {"name": "without", "set": WITHOUT},
            {"name": "skipped", "set": {"training.skip_samples": [[8, 15]]}},
            {"name": "again"} | second,
            {"name": "begun", "resume": str(folder / "without/checkpoints/step-00000002")},
        ]
        two: list[dict[str, Any]] = [
            {"name": "stage1", "set": {"zero.stage": 1}},
            {"name": "offloaded-muon", "set": OFFLOADED | MUON},
            {"name": "moved", "set": {"zero.stage": 2}} | second,
        ]
        train(raw_config, 1, alone)
        train(raw_config, 2, two)
    return raw_config


def train(raw: dict[str, Any], ranks: int, cases: list[dict[str, Any]]) -> None:
    place = Path(raw["run"]["directory"]) / f"workers-{ranks}"
    results = run_workers(TRAIN_CASES, ranks, {"config": raw, "cases": cases}, place, 300)[0]
    assert not any("error" in result for result in results), results


def ema_of(run: Path, step: int = 3) -> dict[str, torch.Tensor]:
    found = step_tensors(run, "ema", step)
    assert found.keys() == step_tensors(run, "weight", step).keys()
    return found


def test_is_the_average(runs: dict[str, Any], folder: Path) -> None:
    """It begins with the first weights, counts those after each update, and not those of a skipped step."""
    expected = step_tensors(folder / "start", "weight", 0)
    for step in (1, 2, 3):
        for name, weight in step_tensors(folder / "plain", "weight", step).items():
            expected[name] = DECAY * expected[name] + (1 - DECAY) * weight  # exact, but for one rounding
        for name, average in ema_of(folder / "plain", step).items():
            assert_close(average, expected[name], bounds.EMA, floor=1e-12, what=(step, name))
    first, second = (ema_of(folder / "skipped", step) for step in (1, 2))
    assert all(torch.equal(first[name], average) for name, average in second.items())


@pytest.mark.numerics
@pytest.mark.parametrize("name", ["stage1", "moved", "offloaded-muon"])
def test_equals_one_process(runs: dict[str, Any], folder: Path, name: str) -> None:
    """It fails if bounds are applied after the average."""
    compare(folder, name)


@pytest.mark.slow
@pytest.mark.numerics
def test_four_ranks(runs: dict[str, Any], folder: Path) -> None:
    """It fails if a sub-group of ZeRO-3 counts the weights twice."""
    cases: dict[str, dict[str, Any]] = {"tensor": {}, "tensor-muon": MUON, "tensor-without": WITHOUT}
    train(runs, 4, [{"name": name, "set": FOUR | changes} for name, changes in cases.items()])
    for name in ("tensor", "tensor-muon"):
        compare(folder, name)
    check_equal(folder, "tensor", "tensor-without", ("weight", "exp_avg"))


def compare(folder: Path, name: str) -> None:
    """Hold a run's averages to those of one process."""
    plain = "plain-muon" if name.endswith("muon") else "plain"
    bound = bounds.MUON_TRAINED if name.endswith("muon") else bounds.TRAINED
    for parameter, average in ema_of(folder / plain).items():
        assert_close(ema_of(folder / name)[parameter], average, bound, floor=1e-12, what=(name, parameter))
    ours, theirs = (_validations(folder / run)[-1] for run in (name, plain))
    assert_close([ours], [theirs], bound, what=name)


def test_resumes_and_leaves_the_weights(runs: dict[str, Any], folder: Path) -> None:
    """Bit for bit: a resumed run, and the weights of a run that evaluates no average."""
    for one, other, kinds in (
        ("plain", "again", ("weight", "ema", "exp_avg")),
        ("plain", "without", ("weight", "exp_avg")),
    ):
        check_equal(folder, one, other, kinds)


def check_equal(folder: Path, one: str, other: str, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        expected, found = (step_tensors(folder / run, kind, 3) for run in (one, other))
        assert expected and all(torch.equal(found[name], tensor) for name, tensor in expected.items()), (other, kind)


def test_begins_with_a_checkpoint_that_has_none(runs: dict[str, Any], folder: Path) -> None:
    before, after = (
        step_tensors(folder / "begun", "weight", step) or step_tensors(folder / "without", "weight", step) for step in (2, 3)
    )
    for name, average in ema_of(folder / "begun").items():
        assert_close(average, DECAY * before[name] + (1 - DECAY) * after[name], bounds.EMA, floor=1e-12, what=name)


def test_is_evaluated_and_exported(runs: dict[str, Any], folder: Path, command: Command) -> None:
    """The loss that training reports is that of the exported average, and not that of the weights."""
    checkpoint = folder / "plain/checkpoints/step-00000003"
    status, printed, errors = command("export", checkpoint, folder / "exported", "--weights", "ema")
    assert status == 0 and "exported the moving average of step 3" in printed, errors
    runs["training"]["init_from"] = str(folder / "exported")
    runs["run"]["directory"] = str(folder / "evaluated")
    ((loss, of_ema),) = run_workers("tests.end_to_end.test_ema:evaluate_at_start", 1, runs, folder / "workers-evaluated")
    line = json.loads((folder / "plain/metrics.jsonl").read_text().splitlines()[-1])
    assert loss == of_ema  # it begins with the weights
    assert_close([line["ema_validation_loss"]], [loss], bounds.TRAINED)
    assert abs(line["validation_loss"] - loss) > 1e-2


def evaluate_at_start(raw: dict[str, Any], topology: Topology) -> tuple[float, float | None]:
    config = parse_config(raw, "evaluated")
    run = build_trainer(config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease))
    validation = run.evaluate()
    return validation.loss, validation.ema_loss


def test_what_is_refused(runs: dict[str, Any], folder: Path, command: Command) -> None:
    """Earlier versions refuse the format, and a run without an average has none to export."""
    without = folder / "without/checkpoints/step-00000003"
    status, _, errors = command("export", without, folder / "none", "--weights", "ema")
    assert (status, errors.count("\n")) == (2, 1) and "a run with optimizer.ema_decay" in errors
    assert not (folder / "none").exists()
    assert load_manifest(without).features == ()
    with_average = load_manifest(folder / "plain/checkpoints/step-00000003")
    assert (with_average.format, with_average.features) == (FEATURES_FORMAT, ("ema",))


def test_frozen_weights_have_none(runs: dict[str, Any], folder: Path) -> None:
    """Their average is what they are."""
    case = {"name": "frozen", "set": {"training.frozen": ["embeddings"], "training.steps": 1, "zero.stage": 3}}
    (result,) = run_workers(TRAIN_CASES, 1, {"config": runs, "cases": [case]}, folder / "workers-frozen")[0]
    assert "error" not in result, result
    checkpoint = RunFolder(folder / "frozen").checkpoint(1)
    reader = CheckpointReader(checkpoint)
    ema = EmaReader(checkpoint)
    assert set(reader.names()) - step_tensors(folder / "frozen", "ema", 1).keys() == {"embedding.weight"}
    assert torch.equal(ema.tensor("embedding.weight"), reader.tensor("embedding.weight"))
    assert not torch.equal(ema.tensor("head.weight"), reader.tensor("head.weight"))


def _validations(run: Path) -> list[float]:
    return [json.loads(line)["ema_validation_loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
