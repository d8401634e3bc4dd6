"""The planner's estimates of training steps and attention layers with every backend."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from megatape.accounting.activations import activations
from megatape.accounting.gpus import Gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_memory
from megatape.accounting.workload import Workload
from megatape.lab.benchmark.models import Shape
from megatape.lab.benchmark.utilization import step_flops, utilization
from megatape.lab.encodings import BASELINE
from megatape.tools.planner.cases import ByCase
from megatape.tools.planner.device import optimizer_work
from megatape.tools.planner.efficiency import DeviceTime, device_times, middle
from megatape.tools.planner.operations import Attention, AttentionBackend, Direction, Work
from megatape.tools.planner.work import attention_layer_work, step_work

PRECISION = "bfloat16"
# Implemented backends. There are only estimates of the others.
IMPLEMENTED = ("sdpa", "triton")
ONE_PASS = "one pass at cuDNN's rates"
# Matrix products of a backward pass of TAPE that computes the scores once, over those of our kernels.
ONE_PASS_PRODUCTS = 7 / 10


@dataclass(frozen=True)
class Estimate:
    """Estimate of a training step or of a layer.

    Attributes:
        encoding: Name of the encoding.
        attention: Name of the backend, as in the keys of results.jsonl, or ONE_PASS.
        mode: "eager" or "compiled".
        times: Pessimistic and optimistic time.
        work: Operations.
        saved: Bytes kept for the backward pass, None if they are not counted.
    """

    encoding: str
    attention: str
    mode: str
    times: ByCase[DeviceTime]
    work: Work
    saved: int | None = None

    @property
    def seconds(self) -> float:
        """Seconds in the middle of the range."""
        return sum(middle(self.times))

    @property
    def by(self) -> str:
        """Backend and mode, for a cell of a table."""
        return f"{self.attention}, {self.mode}"


def step_estimates(shape: Shape, gpu: Gpu) -> Iterator[Estimate]:
    """Yield the estimates of a training step with every backend, eager and compiled."""
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
                saved = activations(Workload.from_config(configs[attention]), on_gpu=True).total
            yield Estimate(encoding, attention, mode, device_times(work, gpu), work, saved)


def layer_estimates(shape: Shape, gpu: Gpu) -> Iterator[Estimate]:
    """Yield the estimates of an attention layer with every backend."""
    for encoding in (BASELINE, "tape"):
        works = {}
        for attention in IMPLEMENTED:
            config = shape.config(encoding, PRECISION, attention=attention)
            works[attention] = attention_layer_work(Workload.from_config(config))
        works |= one_pass_work(encoding, works)
        for attention, work in works.items():
            yield Estimate(encoding, attention, "eager", device_times(work, gpu), work)


def one_pass_work(encoding: str, works: dict[str, Work]) -> dict[str, Work]:
    """Return the work of TAPE with attention in one pass, which is not implemented."""
    if encoding == BASELINE:
        return {}
    result: Work = Counter()
    # Added one by one: Counter + Counter drops negative counts, and fusion produces some.
    for operation, count in works["triton"].items():
        kind = operation.kind
        if isinstance(kind, Attention):
            flops: float = operation.flops
            if kind.direction is Direction.BACKWARD:
                flops = operation.flops * ONE_PASS_PRODUCTS
            operation = operation._replace(kind=kind._replace(backend=AttentionBackend.SDPA), flops=flops)
        result[operation] += count
    return {ONE_PASS: result}


def estimated_utilization(shape: Shape, gpu: Gpu, estimate: Estimate) -> float:
    """Return the model FLOPs utilization."""
    model = shape.config(estimate.encoding, PRECISION).model
    flops = step_flops(model, shape.batch, shape.length)
    return utilization(flops, estimate.seconds, gpu.bfloat16_flops)


def least_saved(steps: list[Estimate], encoding: str) -> tuple[int, str]:
    """Return the fewest bytes kept for the backward pass, with the backend and mode that keep them."""
    found = []
    for estimate in steps:
        if estimate.encoding == encoding and estimate.saved is not None:
            found.append((estimate.saved, estimate.by))
    return min(found)


def ratios_to_rope(estimates: list[Estimate]) -> Iterator[tuple[float, str]]:
    """Yield the ratios of TAPE to the fastest RoPE, by the fastest implemented backend and by one pass, each with its name."""
    base = fastest(estimates, BASELINE, *IMPLEMENTED)
    for attentions in (IMPLEMENTED, (ONE_PASS,)):
        own = fastest(estimates, "tape", *attentions)
        yield own.seconds / base.seconds, own.by


def fastest(estimates: list[Estimate], encoding: str, *attentions: str) -> Estimate:
    """Return the fastest estimate of an encoding with one of these backends."""
    found = []
    for estimate in estimates:
        if estimate.encoding == encoding and estimate.attention in attentions:
            found.append(estimate)
    return min(found, key=lambda estimate: estimate.seconds)
