"""The planner's estimates of training steps of RoPE and TAPE, without a GPU, beside the targets."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from megatape.accounting.activations import activations
from megatape.accounting.gpus import Gpu, load_gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_memory
from megatape.accounting.workload import Workload
from megatape.errors import UserError
from megatape.lab.benchmark.cells import ratio_cell
from megatape.lab.benchmark.gpu.results import Results, read_results
from megatape.lab.benchmark.models import Shape, shapes
from megatape.lab.benchmark.targets import MFU_TARGET, STEP_TARGETS, TargetRow, layer_row, saved_row, step_row, utilization_row
from megatape.lab.benchmark.utilization import step_flops, utilization
from megatape.lab.encodings import BASELINE
from megatape.tools.planner.cases import ByCase
from megatape.tools.planner.device import optimizer_work
from megatape.tools.planner.efficiency import ASSUMPTIONS, DeviceTime, device_times, middle
from megatape.tools.planner.operations import Attention, AttentionBackend, Direction, Work
from megatape.tools.planner.work import attention_layer_work, step_work
from megatape.utils.tables import markdown
from megatape.utils.units import format_bytes

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


def report(
    gpu_name: str,
    measured: Path | None,
    tiny: bool = False,
    step_targets: Mapping[str, float] = STEP_TARGETS,
) -> Iterator[str]:
    """Estimate training steps, and yield the paragraphs of the report.

    Args:
        gpu_name: Name of the GPU, or a JSON file.
        measured: results.jsonl of megatape benchmark gpu, whose steps are shown beside the estimates, or None.
        tiny: Whether to use small shapes.
        step_targets: Largest ratio of TAPE's training step to RoPE's, by shape to estimate.

    Raises:
        UserError: The GPU is unknown, a file is invalid, or Triton is missing, whose kernels are counted.
        FileNotFoundError: There is no such file.
    """
    if find_spec("triton") is None:
        raise UserError("the roofline counts our kernels, which need the package triton: pip install triton")
    gpu = load_gpu(gpu_name)
    results: Results = {}
    if measured is not None:
        results = read_results(measured)
    yield f"Estimates for one {gpu.name} in {PRECISION}. Assumed:"
    yield "\n".join(f"* {line}" for line in ASSUMPTIONS)
    targets: list[list[str]] = []
    for name, step_target in step_targets.items():
        shape = shapes(tiny)[name]
        steps = list(_steps(shape, gpu))
        yield f"**Training steps at {name}, {shape.batch} x {shape.length}**"
        yield _steps_table(name, shape, gpu, steps, results)
        targets += _target_rows(name, shape, gpu, steps, step_target)
    layers = list(_layers(shapes(tiny)["155m"], gpu))
    targets += [_row(layer_row("155m", ratio), by) for ratio, by in _ratios(layers)]
    yield "**Targets**"
    yield markdown(["", "estimate", "by", "target", "met"], targets)


def _steps(shape: Shape, gpu: Gpu) -> Iterator[Estimate]:
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


def _layers(shape: Shape, gpu: Gpu) -> Iterator[Estimate]:
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


def _steps_table(name: str, shape: Shape, gpu: Gpu, steps: list[Estimate], results: Results) -> str:
    """Return a table of the estimates, with measured times if there are results."""
    header = [
        "encoding",
        "attention",
        "",
        "ms",
        "to the fastest RoPE",
        "MFU",
        "arithmetic, ms",
        "memory, ms",
        "bytes for each number of x",
        "saved",
    ]
    if results:
        header.append("measured, ms")
    baseline = _fastest(steps, BASELINE, *IMPLEMENTED).seconds
    rows = []
    for estimate in steps:
        key = (estimate.encoding, estimate.attention, estimate.mode)
        row = [*key, *_cells(estimate, shape, gpu, baseline)]
        if results:
            found = results.get("/".join([f"step {name}", *key]), {})
            measured = ""
            if "seconds" in found:
                measured = f"{found['seconds'] * 1e3:.1f}"
            row.append(measured)
        rows.append(row)
    return markdown(header, rows)


def _cells(estimate: Estimate, shape: Shape, gpu: Gpu, baseline: float) -> list[str]:
    """Return the figures of an estimate. `baseline` is the seconds of the fastest RoPE."""
    compute_bound, memory_bound = middle(estimate.times)
    moved_bytes = 0.0
    for operation, count in estimate.work.items():
        if not operation.flops:
            moved_bytes += operation.bytes * count
    numbers_of_x = shape.batch * shape.length * shape.model.hidden_size * shape.model.num_layers
    saved = ""
    if estimate.saved is not None:
        saved = format_bytes(estimate.saved)
    return [
        f"{estimate.seconds * 1e3:.1f} ({sum(estimate.times.good) * 1e3:.1f} to {sum(estimate.times.bad) * 1e3:.1f})",
        ratio_cell(estimate.seconds / baseline, 3),
        f"{_utilization(shape, gpu, estimate):.0%}",
        f"{compute_bound * 1e3:.1f}",
        f"{memory_bound * 1e3:.1f}",
        f"{moved_bytes / numbers_of_x:.0f}",
        saved,
    ]


def _utilization(shape: Shape, gpu: Gpu, estimate: Estimate) -> float:
    """Return the model FLOPs utilization."""
    model = shape.config(estimate.encoding, PRECISION).model
    flops = step_flops(model, shape.batch, shape.length)
    return utilization(flops, estimate.seconds, gpu.bfloat16_flops)


def _target_rows(name: str, shape: Shape, gpu: Gpu, steps: list[Estimate], step_target: float) -> Iterator[list[str]]:
    """Yield the rows of a shape in the table of targets."""
    for ratio, by in _ratios(steps):
        yield _row(step_row(name, ratio, step_target), by)
    saved_of_rope, _ = _least_saved(steps, BASELINE)
    saved, by = _least_saved(steps, "tape")
    yield _row(saved_row(name, saved / saved_of_rope), by)
    target_shape, _ = MFU_TARGET
    if name == target_shape:
        fastest = _fastest(steps, "tape", *IMPLEMENTED)
        yield _row(utilization_row(_utilization(shape, gpu, fastest)), fastest.by)


def _row(row: TargetRow, by: str) -> list[str]:
    """Return a row of the table of targets, with the backend and the mode of its value."""
    return [row.label, row.value, by, row.target, row.met]


def _least_saved(steps: list[Estimate], encoding: str) -> tuple[int, str]:
    """Return the fewest bytes kept for the backward pass, with the backend and mode that keep them."""
    found = []
    for estimate in steps:
        if estimate.encoding == encoding and estimate.saved is not None:
            found.append((estimate.saved, estimate.by))
    return min(found)


def _ratios(estimates: list[Estimate]) -> Iterator[tuple[float, str]]:
    """Yield the ratios of TAPE to the fastest RoPE, by the fastest implemented backend and by one pass, each with its name."""
    base = _fastest(estimates, BASELINE, *IMPLEMENTED)
    for attentions in (IMPLEMENTED, (ONE_PASS,)):
        own = _fastest(estimates, "tape", *attentions)
        yield own.seconds / base.seconds, own.by


def _fastest(estimates: list[Estimate], encoding: str, *attentions: str) -> Estimate:
    """Return the fastest estimate of an encoding with one of these backends."""
    found = []
    for estimate in estimates:
        if estimate.encoding == encoding and estimate.attention in attentions:
            found.append(estimate)
    return min(found, key=lambda estimate: estimate.seconds)
