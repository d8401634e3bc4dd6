"""Which tiles of the attention kernels are fastest on this device, with this version of Triton.

One kernel at a time gets another tile. Each is timed beside the tiles of `attention.select_tile`, whose results it must have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from megatape.lab.benchmark.models import SHAPES, shapes
from megatape.lab.benchmark.problem import BASELINE, Problem, Variant, relative_error
from megatape.lab.benchmark.results import Result, Results, rows_of, titled
from megatape.lab.benchmark.timing import Timer
from megatape.lab.benchmark.worker import Bench
from megatape.utils.units import format_milliseconds

# By kernel and head size: queries, keys, warps and stages; the next fastest ones on an H200, or large ones with few spills.
CANDIDATES = {
    ("forward_kernel", 64): ((128, 64, 8, 2), (128, 64, 4, 3), (64, 64, 4, 4), (64, 32, 4, 3), (128, 32, 4, 4)),
    ("forward_kernel", 128): ((128, 64, 8, 2), (64, 64, 4, 2), (64, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 3)),
    ("queries_kernel", 64): ((128, 64, 8, 3), (128, 32, 4, 4), (64, 64, 4, 3), (128, 32, 8, 3), (64, 32, 4, 3)),
    ("queries_kernel", 128): ((64, 32, 4, 3), (64, 64, 4, 2), (128, 64, 8, 1), (128, 32, 8, 2), (128, 32, 8, 4)),
    ("keys_kernel", 64): ((64, 128, 8, 2), (64, 128, 8, 3), (64, 64, 4, 1), (64, 64, 4, 3), (32, 64, 4, 3)),
    ("keys_kernel", 128): ((64, 64, 8, 2), (32, 64, 4, 2), (32, 128, 8, 3), (16, 128, 8, 3), (16, 64, 4, 2)),
}


def tiles(bench: Bench) -> None:
    """Measure every tile, for heads of 64 and of 128. Without a GPU PyTorch's attention runs in their place."""
    timer = bench.timer
    variant = Variant("triton", "triton") if timer.device.type == "cuda" else BASELINE
    for name in ("155m", "1b"):
        problem = Problem(shapes(bench.tiny)[name], "moving", False, timer.device)
        for kernel in ("forward_kernel", "queries_kernel", "keys_kernel"):
            for tile in CANDIDATES[kernel, SHAPES[name].model.head_dim]:
                key = f"{name}/{kernel}/{' '.join(map(str, tile))}"
                bench.measure(key, partial(_beside_default, timer, problem, variant, kernel, tile))


def _beside_default(timer: Timer, problem: Problem, variant: Variant, kernel: str, tile: tuple[int, ...]) -> Result:
    replaced = variant._replace(context=partial(trial_tile, kernel, tile))
    difference = max(map(relative_error, problem.step(replaced), problem.step(variant)))
    part = Problem.inference if kernel == "forward_kernel" else Problem.step
    seconds, ratio = timer.compare(partial(part, problem, replaced), partial(part, problem, variant))
    return {"seconds": seconds, "ratio": ratio, "difference": difference}


@contextmanager
def trial_tile(kernel: str, tile: tuple[int, ...]) -> Iterator[None]:
    """Run a kernel with another tile inside the block.

    Args:
        kernel: Name of the kernel.
        tile: Arguments of Tile.
    """
    from megatape.attention.kernels.attention import TRIAL_TILES, Tile

    TRIAL_TILES[kernel] = Tile(*tile)
    try:
        yield
    finally:
        del TRIAL_TILES[kernel]


def table(results: Results) -> Iterator[str]:
    """A table with a row for each tile, the fastest of a kernel first."""
    found = sorted(rows_of(results, "tiles"), key=lambda row: (row[0][:2], row[1]["ratio"]))
    rows = [
        [*words, *tile.split(), format_milliseconds(r["seconds"]), f"{r['ratio']:.2f}", f"{r['difference']:.1e}"]
        for (*words, tile), r in found
    ]
    header = ["shape", "kernel", "queries", "keys", "warps", "stages", "ms", "over the tiles in use", "largest difference"]
    yield from titled("Tiles: attention with another tile in one kernel, forward or with its backward pass", header, rows)
