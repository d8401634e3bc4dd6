"""Estimated speed of published and measured runs."""

import pytest

from megatape.accounting.gpus import Gpu, load_gpu
from megatape.accounting.layout import TrainingLayout
from megatape.config import parse_config
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.step_time.device import device_seconds
from megatape.tools.planner.step_time.efficiency import middle
from megatape.tools.planner.step_time.speed import plan_speed
from megatape.utils.files.json_lines import read_lines
from tests.helpers.checks.slow import slow_but
from tests.helpers.planner.published_speeds import RESULTS, PublishedSpeed, published_speeds

PUBLISHED = published_speeds()
QUICK = [run for run in PUBLISHED if run.cluster.world_size <= 8 and ("torchtitan" in run.name or "MegaTAPE" in run.name)]


def _gpu_tokens(run: PublishedSpeed, gpu: Gpu) -> tuple[float, float]:
    """Return the estimated tokens per second of a GPU, (low, high)."""
    low, high = plan_speed(
        TrainingLayout.from_config(run.config, run.cluster.world_size), PlannedCluster(run.cluster, gpu)
    ).seconds
    tokens = run.config.step_tokens / run.cluster.world_size
    return tokens / high, tokens / low


@pytest.mark.parametrize("run", slow_but(QUICK, PUBLISHED), ids=str)
def test_the_range_has_the_speed_of_published_runs(run: PublishedSpeed) -> None:
    """Estimates by the roofline alone were up to 1.5 times as fast as the runs."""
    slowest, fastest = _gpu_tokens(run, run.gpu)
    assert slowest <= run.tokens <= fastest


@pytest.mark.parametrize(("compiled", "tokens"), [(False, 5762), (True, 6667)])
def test_h100_of_the_table_reaches_published_speeds(compiled: bool, tokens: float) -> None:
    """The published runs used H100s with slower memory and less power than those in the planner's table."""
    [run] = [run for run in QUICK if "torchtitan" in run.name and run.config.training.compile == compiled]
    slowest, fastest = _gpu_tokens(run, load_gpu("h100"))
    assert slowest <= tokens <= fastest


@pytest.mark.parametrize("size", slow_but(["155m"], ["155m", "1b"]))
def test_estimates_match_steps_measured_on_one_gpu(size: str) -> None:
    """Eager and compiled steps are both checked, so the gain of compiling is right as well."""
    entries = {entry["key"]: entry for _, entry in read_lines(RESULTS / "gpu_h200.jsonl")}
    gpu = load_gpu("h200")
    measured = {}
    estimated = {}
    for key, entry in entries.items():
        if key.startswith(f"step {size}/") and "config" in entry:
            config = parse_config(entry["config"], key)
            measured[key] = entry["seconds"]
            estimated[key] = sum(middle(device_seconds(TrainingLayout.from_config(config, 1), gpu)))
    assert len(measured) > 8
    for key, seconds in measured.items():
        assert 0.95 < seconds / estimated[key] < 1.1, key
    for key in (f"step {size}/rope/sdpa", f"step {size}/tape/triton"):
        measured_gain = measured[f"{key}/eager"] / measured[f"{key}/compiled"]
        estimated_gain = estimated[f"{key}/eager"] / estimated[f"{key}/compiled"]
        assert measured_gain == pytest.approx(estimated_gain, abs=0.04)
