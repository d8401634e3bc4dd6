"""Estimated RoPE and TAPE training steps, compared with the targets and optionally with measurements."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from megatape.accounting.gpus import Gpu, load_gpu
from megatape.errors import UserError
from megatape.lab.benchmark.figures.cells import bytes_cell, ratio_cell
from megatape.lab.benchmark.figures.measurement import Seconds
from megatape.lab.benchmark.figures.targets import (
    MFU_TARGET,
    STEP_TARGETS,
    TargetCheck,
    layer_check,
    saved_check,
    step_check,
    utilization_check,
)
from megatape.lab.benchmark.gpu.parts.step_tables import StepCase, step_part
from megatape.lab.benchmark.gpu.results import ResultKey, Results, read_results
from megatape.lab.benchmark.models.shapes import ModelShape, shapes
from megatape.lab.benchmark.roofline.estimates import (
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
from megatape.lab.encodings import BASELINE
from megatape.tools.planner.step_time.efficiency import middle
from megatape.tools.planner.step_time.rates import ASSUMPTIONS
from megatape.utils.text.paragraphs import Show
from megatape.utils.text.tables import markdown


def report(
    gpu_name: str,
    measured: Path | None,
    show: Show,
    tiny: bool = False,
    step_targets: Mapping[str, float] = STEP_TARGETS,
) -> None:
    """Estimate training steps, and show the estimates.

    Args:
        gpu_name: GPU name, or a JSON file.
        measured: results.jsonl from `megatape benchmark gpu`, to show its steps beside the estimates.
        show: Called with each paragraph as soon as it is known.
        tiny: Whether to use small shapes.
        step_targets: Name of the shape to estimate -> largest ratio of TAPE's training step to RoPE's.

    Raises:
        UserError: The GPU is unknown, a file is invalid, or Triton is missing.
        FileNotFoundError: A file is missing.
    """
    if find_spec("triton") is None:
        raise UserError("the roofline counts our kernels, which need the package triton: pip install triton")
    gpu = load_gpu(gpu_name)
    results: Results = {}
    if measured is not None:
        results = read_results(measured)
    show(f"Estimates for one {gpu.name} in {PRECISION}. Assumed:")
    show("\n".join(f"* {line}" for line in ASSUMPTIONS))
    targets: list[list[str]] = []
    for name, step_target in step_targets.items():
        shape = shapes(tiny)[name]
        steps = list(step_estimates(shape, gpu))
        show(f"**Training steps at {name}, {shape.batch} x {shape.length}**")
        show(_steps_table(name, shape, gpu, steps, results))
        targets += _target_rows(name, shape, gpu, steps, step_target)
    layers = list(layer_estimates(shapes(tiny)["155m"], gpu))
    targets += [_row(layer_check("155m", ratio), by) for ratio, by in ratios_to_rope(layers)]
    show("**Targets**")
    show(markdown(["", "estimate", "by", "target", "met"], targets))


def _steps_table(name: str, shape: ModelShape, gpu: Gpu, steps: list[Estimate], results: Results) -> str:
    """Return a table with a row per estimate, adding measured times if there are results."""
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
        case = StepCase(estimate.encoding, estimate.attention, estimate.mode)
        row = [*case, *_cells(estimate, shape, gpu, baseline)]
        if results:
            row.append(_measured_cell(results, ResultKey(step_part(name), case)))
        rows.append(row)
    return markdown(header, rows)


def _measured_cell(results: Results, key: ResultKey) -> str:
    result = results.get(key)
    if result is None or not result.is_measured:
        return ""
    step = Seconds.model_validate(result.figures)
    return f"{step.seconds * 1e3:.1f}"


def _cells(estimate: Estimate, shape: ModelShape, gpu: Gpu, baseline: float) -> list[str]:
    """Return an estimate's cells. `baseline`: seconds of the fastest RoPE."""
    compute_bound, memory_bound = middle(estimate.times)
    moved_bytes = 0.0
    for operation, count in estimate.work.items():
        if not operation.flops:
            moved_bytes += operation.bytes * count
    numbers_of_x = shape.batch * shape.length * shape.model.hidden_size * shape.model.num_layers
    good_ms = sum(estimate.times.good) * 1e3
    bad_ms = sum(estimate.times.bad) * 1e3
    return [
        f"{estimate.seconds * 1e3:.1f} ({good_ms:.1f} to {bad_ms:.1f})",
        ratio_cell(estimate.seconds / baseline, 3),
        f"{estimated_utilization(shape, gpu, estimate):.0%}",
        f"{compute_bound * 1e3:.1f}",
        f"{memory_bound * 1e3:.1f}",
        f"{moved_bytes / numbers_of_x:.0f}",
        bytes_cell(estimate.saved),
    ]


def _target_rows(name: str, shape: ModelShape, gpu: Gpu, steps: list[Estimate], step_target: float) -> Iterator[list[str]]:
    for ratio, by in ratios_to_rope(steps):
        yield _row(step_check(name, ratio, step_target), by)
    saved_of_rope = least_saved(steps, BASELINE)
    saved = least_saved(steps, "tape")
    yield _row(saved_check(name, saved.num_bytes / saved_of_rope.num_bytes), saved.by)
    if name == MFU_TARGET.shape:
        best = fastest(steps, "tape", *IMPLEMENTED)
        yield _row(utilization_check(estimated_utilization(shape, gpu, best)), best.by)


def _row(check: TargetCheck, by: str) -> list[str]:
    return [check.quantity, check.value_cell, by, check.target_cell, check.met_cell]
