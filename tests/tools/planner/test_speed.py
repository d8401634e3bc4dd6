"""Estimated speed of published and measured runs."""

import pytest

from megatape.accounting.gpus import load_gpu
from megatape.config import parse_config
from megatape.tools.planner.device import device_seconds
from megatape.tools.planner.efficiency import middle
from megatape.tools.planner.speed import plan_speed
from megatape.utils.files import read_lines
from tests.helpers.published_speeds import RESULTS, PublishedSpeed, published_speeds
from tests.helpers.slow import slow_but

PUBLISHED = published_speeds()
QUICK = [run for run in PUBLISHED if run.cluster.world_size <= 8 and ("torchtitan" in run.name or "MegaTAPE" in run.name)]


@pytest.mark.parametrize("run", slow_but(QUICK, PUBLISHED), ids=str)
def test_the_range_has_the_speed_of_published_runs(run: PublishedSpeed) -> None:
    """Estimates by the roofline alone were up to 1.5 times as fast as the runs."""
    speed = plan_speed(run.config, run.cluster, run.gpu)
    slowest, fastest = (run.config.step_tokens / seconds / run.cluster.world_size for seconds in reversed(speed.seconds))
    assert slowest <= run.tokens <= fastest


@pytest.mark.parametrize(("compiled", "tokens"), [(False, 5762), (True, 6667)])
def test_h100_of_the_table_reaches_published_speeds(compiled: bool, tokens: float) -> None:
    """The published runs used H100s with slower memory and less power than those in the planner's table."""
    [run] = [run for run in QUICK if "torchtitan" in run.name and run.config.training.compile == compiled]
    speed = plan_speed(run.config, run.cluster, load_gpu("h100"))
    slowest, fastest = (run.config.step_tokens / seconds / run.cluster.world_size for seconds in reversed(speed.seconds))
    assert slowest <= tokens <= fastest


@pytest.mark.parametrize("size", slow_but(["155m"], ["155m", "1b"]))
def test_estimates_match_steps_measured_on_one_gpu(size: str) -> None:
    """Eager and compiled steps are both checked, so the gain of compiling is right as well."""
    entries = {entry["key"]: entry for _, entry in read_lines(RESULTS / "gpu_h200.jsonl")}
    gpu = load_gpu("h200")
    seconds = {}
    for key, entry in entries.items():
        if key.startswith(f"step {size}/") and "config" in entry:
            config = parse_config(entry["config"], key)
            seconds[key] = (entry["seconds"], sum(middle(device_seconds(config, 1, gpu))))
    assert len(seconds) > 8
    for measured, estimated in seconds.values():
        assert 0.95 < measured / estimated < 1.1
    for key in (f"step {size}/rope/sdpa", f"step {size}/tape/triton"):
        gains = [eager / compiled for eager, compiled in zip(seconds[f"{key}/eager"], seconds[f"{key}/compiled"], strict=True)]
        assert gains[0] == pytest.approx(gains[1], abs=0.04)
