"""Tables of training steps: targets, and a row for each way to run a step."""

from collections.abc import Iterator, Sequence

from megatape.lab.benchmark.gpu.results import Result, Results
from megatape.lab.benchmark.gpu.tables import over_rope, rows_of, titled, yes_no
from megatape.lab.benchmark.gpu.targets import LAYER_TARGET, MFU_TARGET, SAVED_TARGET, STEP_TARGETS
from megatape.utils.units import format_bytes, format_milliseconds

# Modes of a step, the last words of its keys. A mode of activation checkpointing is eager, too.
SELECTIVE = "selective"
STEP_MODES = ("eager", "compiled", SELECTIVE)
# Last word of the keys of attention layers.
LAYER = "attention layer"

# (encoding, backend, mode)
Key = tuple[str, ...]


def step_tables(results: Results) -> Iterator[str]:
    """Yield the targets, then a table with a row for each way to run a step."""
    yield from _targets(results)
    yield from _step_table(results)


def _targets(results: Results) -> Iterator[str]:
    cases = []
    for shape, target in STEP_TARGETS.items():
        cases.append((f"training step at {shape}", _ratios(results, shape), target))
    for shape in ("155m", "1b"):
        ratios = _ratios(results, shape, ("eager",), "saved bytes")
        cases.append((f"saved activations at {shape}", ratios, SAVED_TARGET))
    cases.append(("attention layer forward at 155m", _ratios(results, "155m", (LAYER,)), LAYER_TARGET))

    rows = []
    for name, ratios, target in cases:
        ratios_of_tape = [ratio for (encoding, *_), ratio in ratios.items() if encoding == "tape"]
        if ratios_of_tape:
            best = min(ratios_of_tape)
            rows.append([f"{name}, TAPE over RoPE", f"{best:.3f}", f"at most {target}", yes_no(best <= target)])

    shape, min_share = MFU_TARGET
    shares = []
    for (encoding, *_), result in rows_of(results, f"step {shape}"):
        if encoding == "tape" and "MFU" in result:
            shares.append(result["MFU"])
    if shares:
        best = max(shares)
        rows.append([f"MFU of TAPE at {shape}", f"{best:.0%}", f"at least {min_share:.0%}", yes_no(best >= min_share)])
    yield from titled("Targets", ["", "measured", "target", "met"], rows)


def _ratios(
    results: Results,
    shape: str,
    modes: Sequence[str] = STEP_MODES,
    field: str = "ratio",
) -> dict[Key, float]:
    """Return the ratios of a field to its smallest value with RoPE, by encoding, backend and mode."""
    ratios = {}
    for key, result in rows_of(results, f"step {shape}"):
        _, _, mode = key
        if mode in modes and field in result:
            ratios[key] = result[field]
    return over_rope(ratios)


def _step_table(results: Results) -> Iterator[str]:
    rows = []
    for shape in STEP_TARGETS:
        ratios = _ratios(results, shape)
        for key, result in rows_of(results, f"step {shape}"):
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


def _label(shape: str, result: Result) -> str:
    """Return the name of a shape, with the numbers of layers that it is extrapolated from."""
    if "extrapolated from" not in result:
        return shape
    depths = " and ".join(result["extrapolated from"])
    return f"{shape}, from {depths} layers"


def _step_cells(result: Result, ratio: float) -> list[str]:
    """Return the figures of a step. Missing ones are empty."""
    utilization = ""
    if "MFU" in result:
        utilization = f"{result['MFU']:.1%}"
    launched = ""
    if "launched seconds" in result:
        launched = format_milliseconds(result["launched seconds"])
    cells = [
        format_milliseconds(result["seconds"]),
        f"{ratio:.3f}",
        f"{result['tokens/s']:,.0f}",
        utilization,
        launched,
    ]
    for name in ("saved bytes", "peak bytes", "planned bytes"):
        cell = ""
        if name in result:
            cell = format_bytes(result[name])
        cells.append(cell)
    return cells
