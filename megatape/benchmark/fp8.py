"""Training steps with FP8 products beside those without, in the same rounds.

Both are compiled: FP8 gains only where scaling is fused with what comes before it.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import get_args

import torch

from megatape.benchmark.bare import BareStep
from megatape.benchmark.child import Bench
from megatape.benchmark.clock import Clock, clock_of, median, ratio
from megatape.benchmark.journal import Result
from megatape.benchmark.shapes import Shape, shapes
from megatape.config import Fp8Recipe
from megatape.study.efficiency import BASELINE

CHEAPEST: Fp8Recipe = "tensorwise"


def fp8(bench: Bench) -> None:
    """Every recipe at 1B, and the cheapest one at 155M, whose matrices are smaller than FP8 is made for."""
    clock, none = clock_of(bench), "none"
    recipes: list[Fp8Recipe] = [recipe for recipe in get_args(Fp8Recipe) if recipe != none]
    cases = [*(("1b", recipe) for recipe in recipes), ("155m", CHEAPEST)]
    for (name, recipe), encoding in product(cases, (BASELINE, "tape")):
        shape = shapes(bench.tiny)[name]
        bench.measure(f"{name}/{encoding}/{recipe}", partial(_step, clock, shape, encoding, recipe, not bench.tiny))


def _step(clock: Clock, shape: Shape, encoding: str, recipe: Fp8Recipe, compiled: bool) -> Result:
    ways: dict[str, Fp8Recipe] = {"fp8": recipe, "bfloat16": "none"}
    steps: dict[str, Callable[[], object]] = {
        name: BareStep(shape, encoding, clock.device, torch.bfloat16, compiled=compiled, fp8=way) for name, way in ways.items()
    }
    taken = clock.times(steps)
    seconds = median(taken["fp8"])
    return {
        "seconds": seconds,
        "tokens/s": shape.batch * shape.length / seconds,
        "ratio": ratio(taken["fp8"], taken["bfloat16"]),
        "config": shape.config(encoding, "bfloat16", compiled=compiled, fp8=recipe).model_dump(mode="json"),  # for the planner
    }
