"""Search for the attention kernels' fastest tiles on this device, with this Triton version.

One kernel at a time gets another tile. Times and results are compared with the tiles in use.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from megatape.lab.benchmark.figures.cells import ratio_cell
from megatape.lab.benchmark.figures.measurement import Times
from megatape.lab.benchmark.figures.timing import Timer
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.parts.attention_problem import BASELINE, AttentionProblem, AttentionVariant, relative_error
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.tables import measurements, titled
from megatape.lab.benchmark.models.shapes import SHAPES, shapes
from megatape.utils.text.units import format_milliseconds

# (kernel, head size) -> tiles to try: queries, keys, warps and pipeline stages. They are the runners-up on an H200, and large
# tiles with few register spills.
CANDIDATES = {
    ("forward_kernel", 64): (
        (128, 64, 8, 2),
        (128, 64, 4, 3),
        (64, 64, 4, 4),
        (64, 32, 4, 3),
        (128, 32, 4, 4),
    ),
    ("forward_kernel", 128): (
        (128, 64, 8, 2),
        (64, 64, 4, 2),
        (64, 64, 8, 2),
        (128, 32, 8, 3),
        (64, 32, 4, 3),
    ),
    ("queries_kernel", 64): (
        (128, 64, 8, 3),
        (128, 32, 4, 4),
        (64, 64, 4, 3),
        (128, 32, 8, 3),
        (64, 32, 4, 3),
    ),
    ("queries_kernel", 128): (
        (64, 32, 4, 3),
        (64, 64, 4, 2),
        (128, 64, 8, 1),
        (128, 32, 8, 2),
        (128, 32, 8, 4),
    ),
    ("keys_kernel", 64): (
        (64, 128, 8, 2),
        (64, 128, 8, 3),
        (64, 64, 4, 1),
        (64, 64, 4, 3),
        (32, 64, 4, 3),
    ),
    ("keys_kernel", 128): (
        (64, 64, 8, 2),
        (32, 64, 4, 2),
        (32, 128, 8, 3),
        (16, 128, 8, 3),
        (16, 64, 4, 2),
    ),
}


class TileCase(NamedTuple):
    """A kernel's tile: queries, keys, warps and stages, separated by spaces."""

    shape: str
    kernel: str
    tile: str


class TileResult(Times):
    """Times compared with the tiles in use, and the results' largest relative difference."""

    difference: float


def measure(bench: Bench) -> None:
    """Measure every tile. On a CPU, which is for tests, PyTorch's attention runs instead."""
    timer = bench.timer
    variant = BASELINE
    if timer.device.type == "cuda":
        variant = AttentionVariant("triton", "triton")
    for name in ("155m", "1b"):
        problem = AttentionProblem(shapes(bench.tiny)[name], "moving", False, timer.device)
        for kernel in ("forward_kernel", "queries_kernel", "keys_kernel"):
            for tile in CANDIDATES[kernel, SHAPES[name].model.head_dim]:
                sizes = " ".join(str(size) for size in tile)
                action = partial(_measure_tile, timer, problem, variant, kernel, tile)
                bench.measure(TileCase(name, kernel, sizes), action)


def _measure_tile(
    timer: Timer, problem: AttentionProblem, variant: AttentionVariant, kernel: str, tile: tuple[int, ...]
) -> TileResult:
    """Time the forward pass with a tile, for backward kernels both passes."""
    trial = variant._replace(context=partial(_using_tile, kernel, tile))
    errors = []
    for result, expected in zip(problem.step(trial), problem.step(variant), strict=True):
        errors.append(relative_error(result, expected))
    run: Callable[[AttentionProblem, AttentionVariant], object] = AttentionProblem.step
    if kernel == "forward_kernel":
        run = AttentionProblem.inference
    seconds, ratio = timer.compare(partial(run, problem, trial), partial(run, problem, variant))
    return TileResult(seconds=seconds, ratio=ratio, difference=max(errors))


def _using_tile(kernel: str, tile: tuple[int, ...]) -> AbstractContextManager[None]:
    """Return a context in which a kernel uses this tile."""
    # Imports Triton, which a machine without a GPU may lack.
    from megatape.attention.kernels.tile_sizes import Tile, trial_tile

    return trial_tile(kernel, Tile(*tile))


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row per tile, starting with a kernel's fastest."""

    def by_kernel_and_ratio(row: tuple[TileCase, TileResult]) -> tuple[str, str, float]:
        case, result = row
        return case.shape, case.kernel, result.ratio

    tiles = sorted(measurements(results, "tiles", TileCase, TileResult), key=by_kernel_and_ratio)
    rows = []
    for case, result in tiles:
        rows.append(
            [
                case.shape,
                case.kernel,
                *case.tile.split(),
                format_milliseconds(result.seconds),
                ratio_cell(result.ratio),
                f"{result.difference:.1e}",
            ]
        )
    header = [
        "shape",
        "kernel",
        "queries",
        "keys",
        "warps",
        "stages",
        "ms",
        "over the tiles in use",
        "largest difference",
    ]
    yield from titled("Tiles: attention with another tile in one kernel, forward or with its backward pass", header, rows)
