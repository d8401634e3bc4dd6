"""Limits of settings: one mechanism for all tables of the registry."""

import re
from collections.abc import Iterable
from typing import Any

import pytest

from megatape.config import Config
from megatape.config.config import config_limits
from megatape.config.limits import Incompatibility, Limit, ValueOf, check_limits, indivisible
from megatape.config.section import Section
from megatape.config.sections.model import model_limits
from megatape.errors import ConfigError
from megatape.registry import ENCODINGS, LIMITS, EncodingEntry
from tests.helpers.runs.raw_config import parse

STEPS = Incompatibility[Config](
    setting=ValueOf("training.steps"),
    case=ValueOf("zero.stage"),
    when=lambda config: config.training.steps == 10,
    because="which is a test",
    remedy=lambda: "change one of them",
)


def layers(config: Config) -> str | None:
    """Limit of a component: a multiple of three layers unless there are ten steps."""
    if config.training.steps == 10:
        return None
    return indivisible([("model.num_layers", config.model.num_layers)], 3, "3, for a test")


def test_messages() -> None:
    """Messages contain the configuration's values, the reason and the remedy. The first limit counts."""
    with pytest.raises(ConfigError) as error:
        check_limits(parse(), [STEPS, layers])
    assert str(error.value) == "training.steps 10 does not support zero.stage 3, which is a test: change one of them"
    with pytest.raises(ConfigError, match=r"^model.num_layers 2 is not a multiple of 3, for a test$"):
        check_limits(parse(training__steps=11), [STEPS, layers])
    check_limits(parse(training__steps=11, model__num_layers=3), [STEPS, layers])


def test_a_module_of_a_users_own_adds_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "test", f"{__name__}:OWN")
    with pytest.raises(ValueError, match="training.steps 10 does not support zero.stage 3"):
        parse()


OWN = (STEPS,)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallel__cp": 2, "parallel__sp": 2},
        {"training__fp8": "tensorwise", "training__precision": "bfloat16", "zero__stage": 2},
        {"training__compile": True, "zero__stage": 2},
        {"training__num_shifted_groups": 2, "model__encoding": "rope"},
        {"zero__hpz_ranks": 2, "model__nope_every": 2, "model__num_layers": 4},
    ],
    ids=str,
)
def test_every_message_can_be_written(changes: dict[str, Any]) -> None:
    """Every name in a message exists in every configuration."""
    config = parse(**changes)
    tables: tuple[tuple[Iterable[Limit[Any]], Section], ...] = (
        (config_limits(), config),
        (model_limits(), config.model),
    )
    num_checked = 0
    for limits, section in tables:
        for limit in limits:
            if isinstance(limit, Incompatibility) and "lora.dropout" not in str(limit.case):
                assert not re.search(r"[{}]", limit.error(section))
                num_checked += 1
    assert num_checked > 10


def test_limits_follow_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A remedy lists the entries registered when the error is raised."""
    monkeypatch.setitem(ENCODINGS, "stretched", EncodingEntry("own:Stretched", "", scalable=True))
    with pytest.raises(ValueError, match="choose one of tape, rope, stretched"):
        parse(model__encoding="alibi", model__scaling={"kind": "linear", "factor": 2.0})
