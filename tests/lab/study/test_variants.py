"""Variants of a model, in the form of the command's option."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatape.accounting.whole_model.flops import forward_flops
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import Config, ModelConfig, ScalingConfig, parse_config
from megatape.config.sections.scaling import YarnScaling
from megatape.lab.study.comparison.measure import with_scaling
from megatape.lab.study.suite.plan import parse_plan
from megatape.lab.study.suite.runs.experiment import Experiment
from megatape.lab.study.suite.runs.task_folder import TaskFolder
from megatape.lab.study.suite.sizes import SIZES
from megatape.lab.study.variants import EncodingVariant, parse_variants


def test_variants_are_parsed() -> None:
    rope, scaled, wide = parse_variants("rope, tape+yarn,tape:position_size=12:num_kv_heads=4")

    assert rope == EncodingVariant("rope", (), None, None)
    assert scaled == EncodingVariant("tape", (), None, "yarn")
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

    with pytest.raises(ValueError, match="even with an MLP of width 1, .* has [0-9,]+ params, more than .*: exchange"):
        control.mlp_size(parse_config(raw_config, "test", control.overrides))


def test_suite_accepts_variants(tmp_path: Path) -> None:
    plan = parse_plan("tiny", "copy", "rope,rope:params=tape,rope:nope_every=2", 1, None)

    assert plan.encodings == ("rope", "rope:params=tape", "rope:nope_every=2")
    folder = TaskFolder(tmp_path, plan.tasks[0], SIZES[plan.size])
    names = [Experiment(folder, encoding, plan.grid).directory.name for encoding in plan.encodings]
    assert names == ["rope", "rope_params=tape", "rope_nope_every=2"]


def test_a_variant_has_a_pattern_of_layers(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Entries with a window or a count belong to the pattern before them, and the next encoding does not."""
    labels = ("tape:layers=tape@full,rope@16*3", "rope", "tape:layers=tape*1, nope*3:params=rope")
    variants = parse_variants(",".join(labels))
    assert [variant.label for variant in variants] == [labels[0], "rope", "tape:layers=tape*1,nope*3:params=rope"]
    raw_config["model"]["num_layers"] = 8
    config = parse_config(raw_config, "test", variants[0].overrides)
    assert config.model.layers == "tape@full, rope@16*3"
    control = parse_config(raw_config, "test", variants[2].overrides)
    assert variants[2].mlp_size(control) > 0

    label = "rope:layers=rope@full,nope@16*1"
    plan = parse_plan("tiny", "copy", label, 1, None)
    assert plan.encodings == (label,)
    folder = TaskFolder(tmp_path, plan.tasks[0], SIZES[plan.size])
    assert Experiment(folder, label, plan.grid).directory.name == "rope_layers=rope-full_nope-16x1"


def test_suite_refuses_scaled_variants() -> None:
    with pytest.raises(ValueError, match="rope\\+yarn: the suite's tests do not scale frequencies: remove the scaling"):
        parse_plan("tiny", "copy", "rope+yarn", 1, None)
