"""Estimates the training steps of `megatape benchmark gpu` without a GPU."""

from pathlib import Path

from megatape.accounting.gpus import GPUS
from megatape.commands.cli.output import ParagraphPrinter
from megatape.utils.values.options import CommandOptions, option

EXAMPLE = "megatape benchmark roofline --gpu h200 --measured measured/results.jsonl"


class Options(CommandOptions):
    """Steps to estimate.

    Attributes:
        measured: results.jsonl of megatape benchmark gpu: show its steps beside the estimates
        tiny: sizes that show only whether everything runs
    """

    gpu: str = option(
        "h200",
        description=f"{', '.join(GPUS)}, or a JSON file",
        metavar="NAME|FILE",
        completions=tuple(GPUS),
    )
    measured: Path | None = option(None, metavar="FILE")
    tiny: bool = False


def run(options: Options) -> None:
    """Estimate."""
    from megatape.lab.benchmark.roofline.roofline import report

    report(options.gpu, options.measured, ParagraphPrinter().print, options.tiny)
