"""Measures kernels, training steps and serving on a GPU."""

from functools import partial
from pathlib import Path
from typing import Literal

from megatape.errors import UserError, flag
from megatape.lab.benchmark.gpu.registry import PARTS
from megatape.lab.names import parse_names
from megatape.utils.values.options import CommandOptions, Count, option

EXAMPLE = "megatape benchmark gpu --output measured --budget 570"


class Options(CommandOptions):
    """Options of the GPU benchmark.

    Attributes:
        output: folder for results.jsonl, table.md and logs
        parts: parts to measure, such as "machine,step 155m" (default: all)
        budget: end after this time: skip parts that do not fit (default: all)
        done: results.jsonl of an earlier benchmark: measure only what it lacks
        device: device to measure
        tiny: sizes that show only whether everything runs
    """

    output: Path = option(metavar="DIR")
    parts: str | None = option(None, metavar="A,B")
    budget: Count | None = option(None, metavar="SECONDS")
    done: Path | None = option(None, metavar="FILE")
    device: Literal["cuda", "cpu"] = "cuda"
    tiny: bool = False


def run(options: Options) -> None:
    """Measure, and print the progress."""
    if options.device == "cpu" and not options.tiny:
        raise UserError(
            f"{flag('device')} cpu takes hours at these sizes: add {flag('tiny')}, or see the other parts of megatape benchmark"
        )
    chosen = PARTS
    if options.parts is not None:
        part_names = [part.name for part in PARTS]
        names = parse_names("parts", options.parts, part_names, "a part of the benchmark")
        # Parts keep the benchmark's order.
        chosen = tuple(part for part in PARTS if part.name in names)
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"PyTorch finds no CUDA device: run it where there is one, or try it by {flag('device')} cpu and {flag('tiny')}"
        )
    from megatape.lab.benchmark.gpu.report import TABLE
    from megatape.lab.benchmark.gpu.runner import BenchmarkConditions, benchmark

    conditions = BenchmarkConditions(options.device, options.tiny)
    show = partial(print, flush=True)
    benchmark(chosen, options.output, conditions, show, options.done, options.budget)
    print(f"table: {options.output / TABLE}")
