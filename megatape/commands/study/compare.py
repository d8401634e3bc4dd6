"""Trains encodings with several seeds, and compares them in a table and a plot."""

from megatape.commands.cli.output import ParagraphPrinter
from megatape.commands.helpers.shared_options import ConfigOptions
from megatape.commands.helpers.study_options import RunsOptions
from megatape.registry import ENCODINGS
from megatape.utils.values.options import Count, option

EXAMPLE = "megatape study compare --config configs/tape_tiny.json --encodings rope,tape --output runs/compare"


class Options(RunsOptions, ConfigOptions):
    """Encodings to compare.

    Attributes:
        encodings: encodings to compare, such as rope,tape,tape+yarn,tape:position_size=12
            (docs/compare_encodings.md)
        seeds: runs per encoding
    """

    encodings: str = option(metavar="A,B", completions=tuple(ENCODINGS))
    seeds: Count = option(3, metavar="S")


def run(options: Options) -> None:
    """Train and evaluate the models, and print the table."""
    # Report errors before importing torch.
    options.load()
    from megatape.lab.study.comparison.compare import compare
    from megatape.lab.study.execution.pool import RunPool
    from megatape.lab.study.execution.study import Study

    compare(
        file=options.config,
        overrides=options.set,
        encodings=options.encodings,
        seeds=options.seeds,
        study=Study(options.output, RunPool(options.jobs, options.launcher), options.typed, ParagraphPrinter().print),
    )
