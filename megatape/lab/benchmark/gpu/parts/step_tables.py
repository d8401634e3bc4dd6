"""Tables about training steps: targets, and each way to run a step."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from megatape.lab.benchmark.figures.cells import bytes_cell, ratio_cell
from megatape.lab.benchmark.figures.measurement import Measurement
from megatape.lab.benchmark.figures.targets import (
    MFU_TARGET,
    STEP_TARGETS,
    TargetCheck,
    layer_check,
    saved_check,
    step_check,
    utilization_check,
)
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.tables import measurements, over_rope, titled
from megatape.utils.text.units import format_milliseconds

# Training step modes. Steps with selective activation checkpointing are eager, too.
SELECTIVE = "selective"
STEP_MODES = ("eager", "compiled", SELECTIVE)
# Stands for the mode if only the attention layer is measured.
LAYER = "attention layer"


class StepCase(NamedTuple):
    """A way to run a training step. `mode` is one of STEP_MODES, or LAYER."""

    encoding: str
    backend: str
    mode: str


class StepResult(Measurement):
    """Figures for a training step or an attention layer. A layer has only times.

    Attributes:
        seconds: Seconds per step.
        tokens_per_second: Tokens per second.
        flops_per_second: Model FLOPs per second.
        config: Configuration, read by the planner.
        mfu: Model FLOPs utilization, if the device's peak is known.
        ratio: Seconds over eager RoPE's with `auto`.
        launched_seconds: Seconds without a CUDA graph.
        saved_bytes: Bytes kept for the backward pass, not counted in compiled steps.
        planned_bytes: The planner's estimate of peak_bytes.
        peak_bytes: Peak activation bytes on a GPU.
        extrapolated_from: Number of layers -> seconds, if not measured at full depth.
    """

    seconds: float
    tokens_per_second: float | None = Field(None, alias="tokens/s")
    flops_per_second: float | None = Field(None, alias="FLOP/s")
    config: dict[str, Any] | None = None
    mfu: float | None = Field(None, alias="MFU")
    ratio: float
    launched_seconds: float | None = None
    saved_bytes: int | None = None
    planned_bytes: int | float | None = None
    peak_bytes: int | None = None
    extrapolated_from: dict[str, float] | None = None


Ratios = dict[StepCase, float]


def step_part(shape: str) -> str:
    """Return the part that measures a shape."""
    return f"step {shape}"


def step_tables(results: Results) -> Iterator[str]:
    """Yield the targets, then a table with a row per step."""
    yield from _target_table(results)
    yield from _step_table(results)


def _target_table(results: Results) -> Iterator[str]:
    rows = []
    for check in _checks(results):
        rows.append([check.quantity, check.value_cell, check.target_cell, check.met_cell])
    yield from titled("Targets", ["", "measured", "target", "met"], rows)


def _checks(results: Results) -> Iterator[TargetCheck]:
    """Compare TAPE's best results with the targets."""
    for shape in STEP_TARGETS:
        ratio = _best_of_tape(_time_ratios(results, shape))
        if ratio is not None:
            yield step_check(shape, ratio)
    for shape in ("155m", "1b"):
        ratio = _best_of_tape(_saved_ratios(results, shape))
        if ratio is not None:
            yield saved_check(shape, ratio)
    ratio = _best_of_tape(_time_ratios(results, "155m", (LAYER,)))
    if ratio is not None:
        yield layer_check("155m", ratio)

    shares = []
    for case, step in _steps(results, MFU_TARGET.shape):
        if case.encoding == "tape" and step.mfu is not None:
            shares.append(step.mfu)
    if shares:
        yield utilization_check(max(shares))


def _steps(results: Results, shape: str) -> Iterator[tuple[StepCase, StepResult]]:
    return measurements(results, step_part(shape), StepCase, StepResult)


def _best_of_tape(ratios: Ratios) -> float | None:
    return min((ratio for case, ratio in ratios.items() if case.encoding == "tape"), default=None)


def _time_ratios(results: Results, shape: str, modes: Sequence[str] = STEP_MODES) -> Ratios:
    ratios = {}
    for case, step in _steps(results, shape):
        if case.mode in modes:
            ratios[case] = step.ratio
    return over_rope(ratios)


def _saved_ratios(results: Results, shape: str) -> Ratios:
    """Return ratios of saved bytes, without checkpointing, to RoPE's fewest."""
    saved: Ratios = {}
    for case, step in _steps(results, shape):
        if case.mode == "eager" and step.saved_bytes is not None:
            saved[case] = step.saved_bytes
    return over_rope(saved)


def _step_table(results: Results) -> Iterator[str]:
    rows = []
    for shape in STEP_TARGETS:
        ratios = _time_ratios(results, shape)
        for case, step in _steps(results, shape):
            if case in ratios:
                rows.append([_label(shape, step), *case, *_step_cells(step, ratios[case])])
    header = [
        "shape",
        "encoding",
        "attention",
        "",
        "ms",
        "over the fastest RoPE",
        "tokens/s",
        "MFU",
        "ms without a CUDA graph",
        "saved",
        "peak of activations",
        "planned",
    ]
    yield from titled("Training steps", header, rows)


def _label(shape: str, step: StepResult) -> str:
    """Return the shape's name, adding the measured depths if it is extrapolated."""
    if step.extrapolated_from is None:
        return shape
    depths = " and ".join(step.extrapolated_from)
    return f"{shape}, from {depths} layers"


def _step_cells(step: StepResult, ratio: float) -> list[str]:
    tokens = ""
    if step.tokens_per_second is not None:
        tokens = f"{step.tokens_per_second:,.0f}"
    mfu = f"{step.mfu:.1%}" if step.mfu is not None else ""
    launched = ""
    if step.launched_seconds is not None:
        launched = format_milliseconds(step.launched_seconds)
    return [
        format_milliseconds(step.seconds),
        ratio_cell(ratio, 3),
        tokens,
        mfu,
        launched,
        bytes_cell(step.saved_bytes),
        bytes_cell(step.peak_bytes),
        bytes_cell(step.planned_bytes),
    ]
