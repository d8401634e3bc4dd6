"""Training steps with FP8 products beside those without, in the same rounds.

Both are compiled: FP8 gains only where scaling is fused with what comes before it.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import get_args

import torch

from megatape.benchmark.encodings import BASELINE
from megatape.benchmark.journal import Result
from megatape.benchmark.raw_step import RawStep
from megatape.benchmark.shapes import Shape, shapes
from megatape.benchmark.tables import Results, rows_of, titled
from megatape.benchmark.timing import Timer
from megatape.benchmark.worker import Bench
from megatape.config import Fp8Recipe
from megatape.units import format_milliseconds

CHEAPEST: Fp8Recipe = "tensorwise"


def fp8(bench: Bench) -> None:
    """Every recipe at 1B, and the cheapest one at 155M, whose matrices are smaller than FP8 is made for."""
    timer, none = bench.timer, "none"
    recipes: list[Fp8Recipe] = [recipe for recipe in get_args(Fp8Recipe) if recipe != none]
    cases = [*(("1b", recipe) for recipe in recipes), ("155m", CHEAPEST)]
    for (name, recipe), encoding in product(cases, (BASELINE, "tape")):
        shape = shapes(bench.tiny)[name]
        bench.measure(f"{name}/{encoding}/{recipe}", partial(_step, timer, shape, encoding, recipe, not bench.tiny))


def _step(timer: Timer, shape: Shape, encoding: str, recipe: Fp8Recipe, compiled: bool) -> Result:
    recipes: tuple[Fp8Recipe, Fp8Recipe] = (recipe, "none")
    seconds, ratio = timer.compare(
        *(RawStep(shape, encoding, timer.device, torch.bfloat16, compiled=compiled, fp8=each) for each in recipes)
    )
    return {
        "seconds": seconds,
        "tokens/s": shape.batch * shape.length / seconds,
        "ratio": ratio,
        "config": shape.config(encoding, "bfloat16", compiled=compiled, fp8=recipe).model_dump(mode="json"),  # for the planner
    }


def table(results: Results) -> Iterator[str]:
    """A table with a row for each recipe."""
    rows = [
        [*words, format_milliseconds(r["seconds"]), f"{r['ratio']:.3f}", f"{r['tokens/s']:,.0f}"]
        for words, r in rows_of(results, "fp8")
    ]
    yield from titled("Training steps in FP8", ["shape", "encoding", "recipe", "ms", "over bfloat16", "tokens/s"], rows)
