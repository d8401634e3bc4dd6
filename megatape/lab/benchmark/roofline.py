"""The planner's estimates of training steps of RoPE and TAPE, without a GPU, beside the targets."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from megatape.accounting.gpus import Gpu, load_gpu
from megatape.errors import UserError
from megatape.lab.benchmark.cells import ratio_cell
from megatape.lab.benchmark.estimates import (
    IMPLEMENTED,
    PRECISION,
    Estimate,
    estimated_utilization,
    fastest,
    layer_estimates,
    least_saved,
    ratios_to_rope,
    step_estimates,
)
from megatape.lab.benchmark.gpu.results import Key, Results, read_results
from megatape.lab.benchmark.models import Shape, shapes
from megatape.lab.benchmark.targets import MFU_TARGET, STEP_TARGETS, TargetRow, layer_row, saved_row, step_row, utilization_row
from megatape.lab.encodings import BASELINE
from megatape.tools.planner.efficiency import middle
from megatape.tools.planner.rates import ASSUMPTIONS
from megatape.utils.tables import markdown
from megatape.utils.units import format_bytes


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
        steps = list(step_estimates(shape, gpu))
        yield f"**Training steps at {name}, {shape.batch} x {shape.length}**"
        yield _steps_table(name, shape, gpu, steps, results)
        targets += _target_rows(name, shape, gpu, steps, step_target)
    layers = list(layer_estimates(shapes(tiny)["155m"], gpu))
    targets += [_row(layer_row("155m", ratio), by) for ratio, by in ratios_to_rope(layers)]
    yield "**Targets**"
    yield markdown(["", "estimate", "by", "target", "met"], targets)


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
    baseline = fastest(steps, BASELINE, *IMPLEMENTED).seconds
    rows = []
    for estimate in steps:
        key = (estimate.encoding, estimate.attention, estimate.mode)
        row = [*key, *_cells(estimate, shape, gpu, baseline)]
        if results:
            found = results.get(Key(f"step {name}", key), {})
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
        f"{estimated_utilization(shape, gpu, estimate):.0%}",
        f"{compute_bound * 1e3:.1f}",
        f"{memory_bound * 1e3:.1f}",
        f"{moved_bytes / numbers_of_x:.0f}",
        saved,
    ]


def _target_rows(name: str, shape: Shape, gpu: Gpu, steps: list[Estimate], step_target: float) -> Iterator[list[str]]:
    """Yield the rows of a shape in the table of targets."""
    for ratio, by in ratios_to_rope(steps):
        yield _row(step_row(name, ratio, step_target), by)
    saved_of_rope, _ = least_saved(steps, BASELINE)
    saved, by = least_saved(steps, "tape")
    yield _row(saved_row(name, saved / saved_of_rope), by)
    target_shape, _ = MFU_TARGET
    if name == target_shape:
        best = fastest(steps, "tape", *IMPLEMENTED)
        yield _row(utilization_row(estimated_utilization(shape, gpu, best)), best.by)


def _row(row: TargetRow, by: str) -> list[str]:
    """Return a row of the table of targets, with the backend and the mode of its value."""
    return [row.label, row.value, by, row.target, row.met]
