"""Measures kernels, training steps and serving on a GPU."""

from pathlib import Path
from typing import Literal

from megatape.errors import UserError
from megatape.lab.benchmark.gpu.parts import PARTS
from megatape.lab.names import parse_names
from megatape.utils.options import CommandOptions, Count, option

EXAMPLE = "megatape benchmark gpu --out measured --budget 570"


class Options(CommandOptions):
    """Options of the GPU benchmark.

    Attributes:
        out: folder for results.jsonl, table.md and logs
        parts: parts to measure, such as "machine,step 155m" (default: all)
        budget: end after this time: skip parts that do not fit (default: all)
        done: results.jsonl of an earlier benchmark: measure only what it lacks
        device: device to measure
        tiny: sizes that show only whether everything runs
    """

    out: Path = option(metavar="DIR")
    parts: str | None = option(None, metavar="A,B")
    budget: Count | None = option(None, metavar="SECONDS")
    done: Path | None = option(None, metavar="FILE")
    device: Literal["cuda", "cpu"] = "cuda"
    tiny: bool = False


def run(options: Options) -> None:
    """Measure, and print the progress."""
    if options.device == "cpu" and not options.tiny:
        raise UserError("device cpu takes hours at these sizes: add `tiny`, or see the other parts of megatape benchmark")
    chosen = PARTS
    if options.parts is not None:
        part_names = [part.name for part in PARTS]
        names = parse_names("parts", options.parts, part_names, "a part of the benchmark")
        # Parts keep the benchmark's order.
        chosen = tuple(part for part in PARTS if part.name in names)
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("PyTorch finds no CUDA device: run it where there is one, or try it by `device` cpu and `tiny`")
    from megatape.lab.benchmark.gpu.report import TABLE
    from megatape.lab.benchmark.gpu.runner import Conditions, benchmark

    conditions = Conditions(options.device, options.tiny)
    lines = benchmark(chosen, options.out, conditions, options.done, options.budget)
    for line in lines:
        print(line, flush=True)
    print(f"table: {options.out / TABLE}")
