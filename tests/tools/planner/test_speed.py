"""Bytes and time of offloading, by hand."""

from typing import Any

import pytest

from megatape.accounting.counts import count_parameters
from megatape.accounting.gpus import load_gpu
from megatape.config import ClusterConfig, parse_config
from megatape.tools.planner.operations import middle
from megatape.tools.planner.speed import Offload, device_seconds, plan_offload, plan_speed
from megatape.utils.files import read_lines
from megatape.zero.deepspeed_config import Stage3Limits
from tests.helpers.plan_cases import configure
from tests.helpers.published_speeds import RESULTS, PublishedSpeed, published_speeds
from tests.helpers.slow import slow_but

STAGE2 = {"zero.stage": 2, "zero.offload_optimizer": True, "training.precision": "bfloat16"}
STAGE3 = STAGE2 | {"zero.stage": 3}
WEIGHTS = {"zero.stage": 3, "zero.offload_parameters": True, "training.precision": "bfloat16"}


# Bytes for each weight of a rank: gradients and master weights have 4, moments 8, weights 2. Stage 3 copies the gradients of
# each of two micro-batches there and back, then once more. Clipping reads and writes gradients, the optimizer reads them.
@pytest.mark.parametrize(
    ("changes", "beside", "after", "processor"),
    [
        ({}, 0, 0, 0),
        (STAGE2, 0, 4 + 2, 3 * 4 + 2 * 12 + 4 + 2),
        (STAGE3, (2 * 2 + 1) * 4, 2, 3 * 4 + 2 * 12 + 4 + 2),
        (STAGE3 | WEIGHTS, (2 * 2 + 1) * 4 + 2 * 2 * 2, 0, 3 * 4 + 2 * 12 + 4 + 2),
        (WEIGHTS, 2 * 2 * 2, 2, 0),  # gathered for the forward pass and for the backward pass of each micro-batch
    ],
)
def test_bytes(
    raw_config: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    beside: float,
    after: float,
    processor: float,
) -> None:
    """Where nothing is gathered ahead, and so nothing stays from the forward to the backward pass."""
    limits = Stage3Limits(prefetch=1, max_live_parameters=2, persistence_threshold=raw_config["model"]["hidden_size"])
    monkeypatch.setattr("megatape.tools.planner.speed.stage3_limits", lambda config: limits)
    raw_config["model"]["vocab_size"] = 301
    sizes = {"training.micro_batch_size": 2, "training.global_batch_size": 8, "zero.bucket_size": 1}
    config = configure(raw_config, "x", changes | sizes)
    assert config.accumulation(2) == 2
    share = count_parameters(config.model).total / 2
    found = plan_offload(config, 2)
    for bytes_, each in ((found.beside, beside), (found.after, after), (found.processor, processor)):
        assert bytes_ == pytest.approx(each * share, rel=0.05)  # padding, and the vectors that stage 3 keeps whole


def test_seconds() -> None:
    gpu = load_gpu("h100").model_copy(update={"host_link": 10.0, "host_bandwidth": 20.0})
    assert Offload(50, 10, 120).seconds(gpu, 0) == (10, 2 + 20)
    assert Offload(40, 16, 120).seconds(gpu, 1) == (5, 2 + 10)


@pytest.mark.parametrize("changes", [STAGE2, STAGE3], ids=["stage 2", "stage 3"])
def test_steps_take_longer(raw_config: dict[str, Any], changes: dict[str, Any]) -> None:
    cluster = ClusterConfig(nodes=1, gpus_per_node=2, gpu="h100")
    gpu = load_gpu("h100").model_copy(update={"host_link": 1e6, "host_bandwidth": 1e6})  # slower than launching the kernels
    plain = configure(raw_config, "x", changes | {"zero.offload_optimizer": False})
    offloaded = configure(raw_config, "x", changes)
    before, after = (plan_speed(config, cluster, gpu).seconds for config in (plain, offloaded))
    assert all(short < long for short, long in zip(before, after, strict=True))


PUBLISHED = published_speeds()
QUICK = [run for run in PUBLISHED if run.cluster.world_size <= 8 and ("torchtitan" in run.name or "MegaTAPE" in run.name)]


@pytest.mark.parametrize("run", slow_but(QUICK, PUBLISHED), ids=str)
def test_the_range_has_the_speed_of_published_runs(run: PublishedSpeed) -> None:
    """Estimates by the roofline alone were up to 1.5 times as fast as the runs."""
    speed = plan_speed(run.config, run.cluster, run.gpu)
    slowest, fastest = (run.config.step_tokens / seconds / run.cluster.world_size for seconds in reversed(speed.seconds))
    assert slowest <= run.tokens <= fastest


@pytest.mark.parametrize(("compiled", "tokens"), [(False, 5762), (True, 6667)])
def test_the_table_s_h100_has_them_too(compiled: bool, tokens: float) -> None:
    """The published runs used H100s with slower memory and less power than those in the planner's table."""
    [run] = [run for run in QUICK if "torchtitan" in run.name and run.config.training.compile == compiled]
    speed = plan_speed(run.config, run.cluster, load_gpu("h100"))
    slowest, fastest = (run.config.step_tokens / seconds / run.cluster.world_size for seconds in reversed(speed.seconds))
    assert slowest <= tokens <= fastest


@pytest.mark.parametrize("size", slow_but(["155m"], ["155m", "1b"]))
def test_steps_of_one_gpu_are_those_measured(size: str) -> None:
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
