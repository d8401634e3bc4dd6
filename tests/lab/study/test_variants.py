"""Variants of a model, in the form of the command's option."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatape.accounting.flops import forward_flops
from megatape.accounting.parameters import count_parameters
from megatape.config import Config, ModelConfig, ScalingConfig, parse_config
from megatape.config.scaling import YarnScaling
from megatape.lab.study.comparison.measure import with_scaling
from megatape.lab.study.suite.plan import parse_plan
from megatape.lab.study.suite.runs.experiment import Experiment
from megatape.lab.study.suite.runs.task_folder import TaskFolder
from megatape.lab.study.suite.sizes import SIZES
from megatape.lab.study.variants import Variant, parse_variants


def test_variants_are_parsed() -> None:
    rope, scaled, wide = parse_variants("rope, tape+yarn,tape:position_size=12:num_kv_heads=4")

    assert rope == Variant("rope", (), None, None)
    assert scaled == Variant("tape", (), None, "yarn")
    assert scaled.label == "tape+yarn"
    assert wide.overrides == ("model.encoding=tape", "model.position_size=12", "model.num_kv_heads=4")
    assert wide.label == "tape:position_size=12:num_kv_heads=4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpae", r"'tpae' is not an encoding: did you mean tape\?$"),
        ("rope,,tape", "'' is not an encoding"),
        ("rope,rope", "rope is listed twice"),
        ("tape+yarn,tape+yarn", "tape\\+yarn is listed twice"),
        ("alibi+yarn", "alibi has no scaling; only tape and rope do"),
        ("tape+ntk", "'ntk' is not a scaling: choose one of linear, theta, yarn"),
        ("rope:params=rope", "rope is its own encoding: name another one, as in rope:params=tape"),
        ("rope:flops=ropes", "'ropes' is not an encoding"),
        ("rope:params=tape:flops=tape", "params=tape chooses mlp_size: remove the other setting"),
        ("rope:params=tape:mlp_size=12", "params=tape chooses mlp_size: remove the other setting"),
        ("tape:position_size=1:position_size=2", "tape:position_size=1:position_size=2: a setting is given twice"),
        ("tape:12", "'12' is not a model setting"),
        ("tape:encoding=rope", "'encoding=rope' is not a model setting"),
        ("tape:scaling.kind=yarn", "'scaling.kind=yarn' is not a model setting"),
    ],
)
def test_bad_variants_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_variants(text)


def test_scaling_is_for_tests_longer_than_training(raw_config: dict[str, Any]) -> None:
    model = parse_config(raw_config, "test").model

    assert with_scaling(model, "yarn", 32, 32) is model
    assert with_scaling(model, "yarn", 32, 48).scaling == YarnScaling(kind="yarn", factor=1.5, original_length=32)
    assert with_scaling(model, "linear", 32, 48).scaling == ScalingConfig(kind="linear", factor=1.5)


def _num_parameters(model: ModelConfig) -> int:
    return count_parameters(model).total


def _flops(model: ModelConfig) -> int:
    return forward_flops(model, 32)


def _closest_width(config: Config, goal: int, cost: Callable[[ModelConfig], int]) -> int:
    """Return the MLP width with the cost closest to a goal, of all widths that two tensor-parallel ranks can shard."""

    def distance(width: int) -> int:
        return abs(cost(config.model.model_copy(update={"mlp_size": width})) - goal)

    return min(range(2, 400, 2), key=distance)


@pytest.mark.parametrize(
    ("kind", "cost"),
    [("params", _num_parameters), ("flops", _flops)],
    ids=["params", "flops"],
)
@pytest.mark.parametrize("changes", [{}, {"encoding": "nope"}, {"num_kv_heads": 2, "mlp_size": 40}], ids=str)
def test_control_matches_the_cost_of_the_other_model(
    raw_config: dict[str, Any], changes: dict[str, Any], kind: str, cost: Callable[[ModelConfig], int]
) -> None:
    """No other width that the tensor-parallel ranks can shard is closer."""
    raw_config["model"] |= changes
    raw_config["parallel"] = {"tp": 2}
    (control,) = parse_variants(f"rope:{kind}=tape")
    config = parse_config(raw_config, "test", control.overrides)
    goal = cost(parse_config(raw_config, "test", ["model.encoding=tape"]).model)
    expected = _closest_width(config, goal, cost)

    width = control.mlp_size(config)

    assert width == expected
    assert width > config.model.mlp_size
    assert control.overrides_for(config) == ["model.encoding=rope", f"model.mlp_size={width}"]
    description = control.describe_control(config)
    cost_of_control = cost(config.model.model_copy(update={"mlp_size": width}))
    assert f"has mlp_size {width} instead of {config.model.mlp_size}: " in description
    assert f"{cost_of_control:,}" in description
    assert f"{goal:,}" in description


def test_control_without_a_possible_width_is_refused(raw_config: dict[str, Any]) -> None:
    raw_config["model"] |= {"mlp_size": 2, "position_size": 64}
    (control,) = parse_variants("tape:params=rope")

    with pytest.raises(ValueError, match="even an MLP of width 1 has more: exchange the two encodings"):
        control.mlp_size(parse_config(raw_config, "test", control.overrides))


def test_suite_accepts_variants(tmp_path: Path) -> None:
    plan = parse_plan("tiny", "copy", "rope,rope:params=tape,tape:nope_every=2", 1, None)

    assert plan.encodings == ("rope", "rope:params=tape", "tape:nope_every=2")
    folder = TaskFolder(tmp_path, plan.tasks[0], SIZES[plan.size])
    names = [Experiment(folder, encoding, plan.rates).directory.name for encoding in plan.encodings]
    assert names == ["rope", "rope_params=tape", "tape_nope_every=2"]


def test_suite_refuses_scaled_variants() -> None:
    with pytest.raises(ValueError, match="rope\\+yarn: the suite's tests do not scale frequencies: remove the scaling"):
        parse_plan("tiny", "copy", "rope+yarn", 1, None)
