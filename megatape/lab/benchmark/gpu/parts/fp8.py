"""Training steps in FP8, compared with bfloat16 in the same rounds.

Both are compiled, because FP8 is faster only if scaling is fused with the operations before it.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple, get_args

from pydantic import Field

from megatape.config import Fp8Recipe
from megatape.lab.benchmark.figures.cells import ratio_cell
from megatape.lab.benchmark.figures.measurement import Times
from megatape.lab.benchmark.figures.timing import Timer
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.parts.raw_step import RawStep
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.tables import measurements, titled
from megatape.lab.benchmark.models.shapes import ModelShape, shapes
from megatape.lab.encodings import BASELINE
from megatape.utils.text.units import format_milliseconds


class Fp8Case(NamedTuple):
    """An FP8 training step. `recipe` is a training.fp8 value."""

    shape: str
    encoding: str
    recipe: str


class Fp8Result(Times):
    """Times compared with bfloat16, and the step's configuration for the planner."""

    tokens_per_second: float = Field(alias="tokens/s")
    config: dict[str, Any] | None = None


def measure(bench: Bench) -> None:
    """Measure every recipe at 1B, and the cheapest one at 155M, whose matrices are small for FP8."""
    timer = bench.timer
    cases = [("1b", recipe) for recipe in get_args(Fp8Recipe) if recipe != "none"]
    cases.append(("155m", "tensorwise"))
    for (name, recipe), encoding in product(cases, (BASELINE, "tape")):
        shape = shapes(bench.tiny)[name]
        action = partial(_measure_recipe, timer, shape, encoding, recipe, compiled=not bench.tiny)
        bench.measure(Fp8Case(name, encoding, recipe), action)


def _measure_recipe(timer: Timer, shape: ModelShape, encoding: str, recipe: str, compiled: bool) -> Fp8Result:
    config = shape.config(encoding, "bfloat16", compile=compiled, fp8=recipe)
    plain = shape.config(encoding, "bfloat16", compile=compiled, fp8="none")
    seconds, ratio = timer.compare(RawStep(config, timer.device), RawStep(plain, timer.device))
    return Fp8Result(
        seconds=seconds,
        ratio=ratio,
        tokens_per_second=shape.batch * shape.length / seconds,
        config=config.model_dump(mode="json"),
    )


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row per case."""
    rows = []
    for case, result in measurements(results, "fp8", Fp8Case, Fp8Result):
        rows.append(
            [
                *case,
                format_milliseconds(result.seconds),
                ratio_cell(result.ratio, 3),
                f"{result.tokens_per_second:,.0f}",
            ]
        )
    header = ["shape", "encoding", "recipe", "ms", "over bfloat16", "tokens/s"]
    yield from titled("Training steps in FP8", header, rows)
