"""Runs that diverge, and settings that only `pretrain` supports."""

from typing import Any

import pytest
import torch

from megatape.config import Config, parse_config
from megatape.data.synthetic.folder import write_task
from megatape.data.synthetic.task import TRAIN, VALIDATION
from megatape.errors import TrainingDiverged
from megatape.lab.study.execution.one_process.learner import Learner
from megatape.lab.study.execution.one_process.step_graph import Called
from megatape.lab.study.execution.one_process.training import train
from megatape.lab.study.execution.one_process.unsupported import unsupported_reason
from tests.helpers.lab.capitals import QUICK, Capitals
from tests.helpers.runs.run_data import open_run_data

STEPS = 6


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the configuration for a run of six steps."""
    data = tmp_path_factory.mktemp("capitals") / "data"
    write_task(Capitals("capitals", "tiny"), {TRAIN: QUICK.batch * STEPS, VALIDATION: 4}, data)
    raw = QUICK.config(Capitals("capitals", "tiny"), str(data), 9)
    raw["training"] |= {"steps": STEPS, "max_skipped_steps": 3}
    raw["evaluation"] = {"interval": STEPS, "samples": 4}
    raw["run"] = {"directory": "none"}
    return raw


def with_setting(raw: dict[str, Any], path: str, value: object) -> Config:
    section, _, key = path.partition(".")
    return parse_config(raw | {section: raw[section] | {key: value}}, "here")


def outcome_with_damage(raw: dict[str, Any], allowed: int) -> tuple[object, dict[str, torch.Tensor], Learner]:
    """Train with one weight that is not a number. Returns the outcome, the weights before, and the learner."""
    config = with_setting(raw, "training.max_skipped_steps", allowed)
    learner = Learner(config, open_run_data(config), torch.device("cpu"))
    with torch.no_grad():
        learner.model.norm.weight[0] = torch.nan
    before = {name: weights.detach().clone() for name, weights in learner.model.named_parameters()}
    (outcome,) = train([learner], Called(), lambda learner, step: None)
    return outcome, before, learner


def test_steps_that_are_not_finite_change_nothing(raw: dict[str, Any]) -> None:
    """After too many skipped steps a run fails, as in `pretrain`."""
    outcome, before, learner = outcome_with_damage(raw, allowed=3)

    assert isinstance(outcome, TrainingDiverged)
    assert "more than 3 steps in a row" in str(outcome)
    for name, weights in learner.model.named_parameters():
        assert torch.equal(weights.detach().nan_to_num(7), before[name].nan_to_num(7)), name


def test_validation_loss_that_is_not_finite_is_an_error(raw: dict[str, Any]) -> None:
    outcome, _, _ = outcome_with_damage(raw, allowed=STEPS)

    assert isinstance(outcome, TrainingDiverged)
    assert "the validation loss is nan" in str(outcome)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("training.precision", "bfloat16"),
        ("training.z_loss", 0.1),
        ("training.on_spike", "skip"),
        ("optimizer.ema_decay", 0.9),
        ("optimizer.kind", "muon"),
        ("training.micro_batch_size", 1),
        ("evaluation.interval", 2),
    ],
)
def test_unsupported_setting_is_named(raw: dict[str, Any], path: str, value: object) -> None:
    """Notices a setting that the engine would ignore."""
    assert unsupported_reason(parse_config(raw, "here")) is None
    assert unsupported_reason(with_setting(raw, path, value)) == f"{path} is {value}"
