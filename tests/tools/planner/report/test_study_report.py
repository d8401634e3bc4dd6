"""The plan of a study: memory, GPU-hours and price of its runs."""

import re
from typing import Any

import pytest

from megatape.config import Config
from megatape.errors import UserError
from megatape.tools.planner.report.report import report
from megatape.tools.planner.report.study_report import study_report
from tests.helpers.planner.plan_cases import configure

CLUSTER = {"cluster.nodes": 1, "cluster.gpus_per_node": 2, "cluster.gpu": "h100"}


def _planned(raw_config: dict[str, Any], encoding: str) -> Config:
    changes = {"training.precision": "bfloat16", "zero.stage": 2, "model.encoding": encoding}
    return configure(raw_config, "x", changes | CLUSTER)


def _range(text: str) -> tuple[float, float]:
    """Return the limits of a range such as "1.2 to 3"."""
    match = re.fullmatch(r"([0-9.e-]+) to ([0-9.e-]+)", text.strip())
    assert match is not None, text
    return float(match[1]), float(match[2])


def test_each_model_has_the_hours_and_memory_of_its_own_plan(raw_config: dict[str, Any]) -> None:
    configs = {"rope": _planned(raw_config, "rope"), "wide TAPE": _planned(raw_config, "tape")}

    lines = study_report(configs, 3, None).splitlines()

    assert lines[0].startswith("6 runs: 2 models, 3 seeds; ")
    for label, config in configs.items():
        (row,) = [line for line in lines if line.startswith(f"{label} ")]
        plan = report(config)
        hours = re.search(r"^GPU-hours for the run +(.*)$", plan, re.MULTILINE)
        memory = re.search(r"^memory needed of a GPU +(.*)$", plan, re.MULTILINE)
        assert hours is not None
        assert memory is not None
        assert row.endswith(f"{memory[1]}  {hours[1]}")


def test_price_is_that_of_all_seeds(raw_config: dict[str, Any]) -> None:
    configs = {"rope": _planned(raw_config, "rope"), "tape": _planned(raw_config, "tape")}

    once = study_report(configs, 1, 2.0)
    four_times = study_report(configs, 4, 2.0)

    totals = []
    for text in (once, four_times):
        match = re.search(r"^all runs: (.*) GPU-hours, which cost (.*) at 2 per GPU-hour$", text, re.MULTILINE)
        assert match is not None
        hours = _range(match[1])
        cost = _range(match[2])
        # Printed with three digits.
        assert cost == pytest.approx([2 * hours[0], 2 * hours[1]], rel=0.01)
        totals.append(hours)
    assert totals[1] == pytest.approx([4 * totals[0][0], 4 * totals[0][1]], rel=0.01)


def test_a_configuration_without_a_cluster_is_refused(raw_config: dict[str, Any]) -> None:
    config = configure(raw_config, "x", {})

    with pytest.raises(UserError, match="names no cluster to plan for: add, for example, --set cluster.nodes=1"):
        study_report({"rope": config}, 1, None)
