"""megatape study failures: `megatape study failures runs/suite/flip_flop/{rope,tape}/rate-0.003/seed-1 --split sparse`."""

from pathlib import Path

from megatape.commands.options import ImportOptions
from megatape.utils.options import Count, Paragraphs, option


class Options(ImportOptions):
    """Runs and samples to look at.

    Attributes:
        runs: run of a suite, such as OUT/flip_flop/rope/rate-0.003/seed-1
        split: split of the task, such as sparse (docs/suite_tasks.md)
        samples: samples of the split
    """

    runs: tuple[Path, ...] = option(positional=True, metavar="RUN")
    split: str
    samples: Count = option(500, metavar="N")


def run(options: Options) -> Paragraphs:
    """Print the tables."""
    from megatape.lab.study.suite.failures import failures

    return failures(options.runs, options.split, options.samples)
