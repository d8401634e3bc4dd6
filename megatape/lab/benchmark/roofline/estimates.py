"""Estimated training steps and attention layers with every backend."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from megatape.accounting.gpus import Gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.memory.saved_activations import count_saved_activations
from megatape.accounting.workload import Workload
from megatape.lab.benchmark.figures.utilization import step_flops, utilization
from megatape.lab.benchmark.models.shapes import ModelShape
from megatape.lab.encodings import BASELINE
from megatape.tools.planner.kernels.operations import Attention, AttentionBackend, Direction, Work
from megatape.tools.planner.kernels.step_work import attention_layer_work, step_work
from megatape.tools.planner.step_time.cases import ByCase
from megatape.tools.planner.step_time.device import optimizer_work
from megatape.tools.planner.step_time.efficiency import DeviceTime, device_times, middle

PRECISION = "bfloat16"
# Backends with an implementation, which the estimates compare.
IMPLEMENTED = ("sdpa", "triton")
# Name of an imagined backend that computes TAPE's scores once in the backward pass, as fast as cuDNN. The real backend `fa4`
# also computes them once, at rates of its own, for TAPE and for RoPE. The estimates leave `fa4` out.
ONE_PASS = "one pass at cuDNN's rates"
# Number of matrix products of ONE_PASS in the backward pass, relative to our kernels.
ONE_PASS_PRODUCTS = 7 / 10


@dataclass(frozen=True)
class Estimate:
    """Estimated training step or attention layer.

    Attributes:
        encoding: Encoding name.
        attention: Backend name, or ONE_PASS.
        mode: "eager" or "compiled".
        times: Pessimistic and optimistic time.
        work: Number of times that each operation runs.
        saved: Bytes kept for the backward pass, None if not counted.
    """

    encoding: str
    attention: str
    mode: str
    times: ByCase[DeviceTime]
    work: Work
    saved: int | None = None

    @property
    def seconds(self) -> float:
        """Middle between both times."""
        return sum(middle(self.times))

    @property
    def by(self) -> str:
        """Backend and mode, for a table cell."""
        return f"{self.attention}, {self.mode}"


class RopeRatio(NamedTuple):
    """TAPE's fastest estimate over RoPE's, with TAPE's backend and mode."""

    ratio: float
    by: str


class SavedBytes(NamedTuple):
    """Bytes kept for the backward pass, with the backend and mode."""

    num_bytes: int
    by: str


def step_estimates(shape: ModelShape, gpu: Gpu) -> Iterator[Estimate]:
    """Estimate a training step with every backend, eager and compiled."""
    for encoding, mode in product((BASELINE, "tape"), ("eager", "compiled")):
        configs = {}
        works = {}
        for attention in IMPLEMENTED:
            config = shape.config(encoding, PRECISION, attention=attention, compile=mode == "compiled")
            configs[attention] = config
            works[attention] = Counter(step_work(Workload.from_config(config)))
        works |= one_pass_work(encoding, works)
        optimizer = optimizer_work(plan_memory(TrainingLayout.from_config(configs["triton"], 1), on_gpu=True))
        for attention, work in works.items():
            work.update(optimizer)
            saved = None
            if mode == "eager" and attention in configs:
                saved = count_saved_activations(Workload.from_config(configs[attention]), on_gpu=True).total
            yield Estimate(encoding, attention, mode, device_times(work, gpu), work, saved)


def layer_estimates(shape: ModelShape, gpu: Gpu) -> Iterator[Estimate]:
    """Estimate an attention layer with every backend."""
    for encoding in (BASELINE, "tape"):
        works = {}
        for attention in IMPLEMENTED:
            config = shape.config(encoding, PRECISION, attention=attention)
            works[attention] = attention_layer_work(Workload.from_config(config))
        works |= one_pass_work(encoding, works)
        for attention, work in works.items():
            yield Estimate(encoding, attention, "eager", device_times(work, gpu), work)


def one_pass_work(encoding: str, works: dict[str, Work]) -> dict[str, Work]:
    """Return TAPE's work with ONE_PASS, derived from our kernels' work. RoPE has none."""
    if encoding == BASELINE:
        return {}
    result: Work = Counter()
    # Add counts one by one: Counter + Counter drops negative ones, and fusion produces some.
    for operation, count in works["triton"].items():
        kind = operation.kind
        if isinstance(kind, Attention):
            flops: float = operation.flops
            if kind.direction is Direction.BACKWARD:
                flops = operation.flops * ONE_PASS_PRODUCTS
            operation = operation._replace(kind=kind._replace(backend=AttentionBackend.SDPA), flops=flops)
        result[operation] += count
    return {ONE_PASS: result}


def estimated_utilization(shape: ModelShape, gpu: Gpu, estimate: Estimate) -> float:
    """Return an estimated step's model FLOPs utilization."""
    model = shape.config(estimate.encoding, PRECISION).model
    flops = step_flops(model, shape.batch, shape.length)
    return utilization(flops, estimate.seconds, gpu.bfloat16_flops)


def least_saved(steps: list[Estimate], encoding: str) -> SavedBytes:
    """Return the fewest bytes that an encoding keeps for the backward pass."""
    saved = []
    for estimate in steps:
        if estimate.encoding == encoding and estimate.saved is not None:
            saved.append(SavedBytes(estimate.saved, estimate.by))
    return min(saved)


def ratios_to_rope(estimates: list[Estimate]) -> Iterator[RopeRatio]:
    """Yield TAPE's ratios to the fastest RoPE: with the fastest implemented backend, then with ONE_PASS."""
    baseline = fastest(estimates, BASELINE, *IMPLEMENTED)
    for attentions in (IMPLEMENTED, (ONE_PASS,)):
        tape = fastest(estimates, "tape", *attentions)
        yield RopeRatio(tape.seconds / baseline.seconds, tape.by)


def fastest(estimates: list[Estimate], encoding: str, *attentions: str) -> Estimate:
    """Return an encoding's fastest estimate with these backends."""
    candidates = []
    for estimate in estimates:
        if estimate.encoding == encoding and estimate.attention in attentions:
            candidates.append(estimate)
    return min(candidates, key=lambda estimate: estimate.seconds)
