"""megatape benchmark roofline: `megatape benchmark roofline --gpu h200 --measured measured/results.jsonl`."""

from pathlib import Path

from megatape.commands.paragraphs import show
from megatape.options import CommandOptions, option
from megatape.plan.gpus import GPUS


class Options(CommandOptions):
    """Steps to estimate."""

    gpu: str = option(f"{', '.join(GPUS)}, or a JSON file", "h200", metavar="NAME|FILE")
    measured: Path | None = option(
        "results.jsonl of megatape benchmark gpu: show its steps beside the estimates", None, metavar="FILE"
    )
    tiny: bool = option("sizes that show only whether everything runs", False)


def run(options: Options) -> int:
    """Estimate and print."""
    from megatape.benchmark.roofline import report

    return show(report(options.gpu, options.measured, options.tiny))
