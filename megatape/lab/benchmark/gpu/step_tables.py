"""Tables of training steps: targets, and a row for each way to run a step."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field

from megatape.lab.benchmark.cells import ratio_cell
from megatape.lab.benchmark.gpu.results import Measurement, Results
from megatape.lab.benchmark.gpu.tables import over_rope, rows_of, titled
from megatape.lab.benchmark.targets import MFU_TARGET, STEP_TARGETS, layer_row, saved_row, step_row, utilization_row
from megatape.utils.units import format_bytes, format_milliseconds

# Modes of a step, the last words of its keys. A mode of activation checkpointing is eager, too.
SELECTIVE = "selective"
STEP_MODES = ("eager", "compiled", SELECTIVE)
# Last word of the keys of attention layers.
LAYER = "attention layer"

# (encoding, backend, mode)
Key = tuple[str, ...]


class StepResult(Measurement):
    """Result of a training step or of an attention layer. Layers have only times.

    Attributes:
        seconds: Seconds of the step.
        tokens_per_second: Tokens per second.
        flops_per_second: Model FLOPs per second.
        config: Configuration of the step. The planner reads it.
        mfu: Model FLOPs utilization, if the peak of the device is known.
        ratio: Ratio to the step of RoPE with `auto`, eager.
        launched_seconds: Seconds without a CUDA graph.
        saved_bytes: Bytes kept for the backward pass. Not counted in compiled steps.
        planned_bytes: The planner's estimate of the peak bytes of activations.
        peak_bytes: Peak bytes of activations, on a GPU.
        extrapolated_from: Seconds by number of layers that the step is extrapolated from.
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


def step_tables(results: Results) -> Iterator[str]:
    """Yield the targets, then a table with a row for each way to run a step."""
    yield from _targets(results)
    yield from _step_table(results)


def _targets(results: Results) -> Iterator[str]:
    rows = []
    for shape, target in STEP_TARGETS.items():
        ratio = _best_of_tape(_time_ratios(results, shape))
        if ratio is not None:
            rows.append(step_row(shape, ratio, target))
    for shape in ("155m", "1b"):
        ratio = _best_of_tape(_saved_ratios(results, shape))
        if ratio is not None:
            rows.append(saved_row(shape, ratio))
    ratio = _best_of_tape(_time_ratios(results, "155m", (LAYER,)))
    if ratio is not None:
        rows.append(layer_row("155m", ratio))

    shape, _ = MFU_TARGET
    shares = []
    for (encoding, *_), result in rows_of(results, f"step {shape}", StepResult):
        if encoding == "tape" and result.mfu is not None:
            shares.append(result.mfu)
    if shares:
        rows.append(utilization_row(max(shares)))
    yield from titled("Targets", ["", "measured", "target", "met"], [[*row] for row in rows])


def _best_of_tape(ratios: dict[Key, float]) -> float | None:
    """Return the smallest ratio of TAPE, None without one."""
    return min((ratio for (encoding, *_), ratio in ratios.items() if encoding == "tape"), default=None)


def _time_ratios(results: Results, shape: str, modes: Sequence[str] = STEP_MODES) -> dict[Key, float]:
    """Return the ratios of times to the fastest RoPE, by encoding, backend and mode."""
    ratios = {}
    for key, result in rows_of(results, f"step {shape}", StepResult):
        if key[-1] in modes:
            ratios[key] = result.ratio
    return over_rope(ratios)


def _saved_ratios(results: Results, shape: str) -> dict[Key, float]:
    """Return the ratios of saved bytes, without checkpointing, to the fewest with RoPE, by encoding, backend and mode."""
    saved: dict[Key, float] = {}
    for key, result in rows_of(results, f"step {shape}", StepResult):
        if key[-1] == "eager" and result.saved_bytes is not None:
            saved[key] = result.saved_bytes
    return over_rope(saved)


def _step_table(results: Results) -> Iterator[str]:
    rows = []
    for shape in STEP_TARGETS:
        ratios = _time_ratios(results, shape)
        for key, result in rows_of(results, f"step {shape}", StepResult):
            if key in ratios:
                rows.append([_label(shape, result), *key, *_step_cells(result, ratios[key])])
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


def _label(shape: str, result: StepResult) -> str:
    """Return the name of a shape, with the numbers of layers that it is extrapolated from."""
    if result.extrapolated_from is None:
        return shape
    depths = " and ".join(result.extrapolated_from)
    return f"{shape}, from {depths} layers"


def _step_cells(result: StepResult, ratio: float) -> list[str]:
    """Return the figures of a step. Missing ones are empty."""
    tokens = ""
    if result.tokens_per_second is not None:
        tokens = f"{result.tokens_per_second:,.0f}"
    share = ""
    if result.mfu is not None:
        share = f"{result.mfu:.1%}"
    launched = ""
    if result.launched_seconds is not None:
        launched = format_milliseconds(result.launched_seconds)
    cells = [format_milliseconds(result.seconds), ratio_cell(ratio, 3), tokens, share, launched]
    for size in (result.saved_bytes, result.peak_bytes, result.planned_bytes):
        cell = ""
        if size is not None:
            cell = format_bytes(size)
        cells.append(cell)
    return cells
