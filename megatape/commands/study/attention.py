"""megatape study attention: `megatape study attention runs/tape/checkpoints/step-00000500 --out patterns.png`."""

from pathlib import Path

from megatape.commands.study.options import SubjectOptions
from megatape.utils.options import Paragraphs, option


class Options(SubjectOptions):
    """Models to draw, and the plot.

    Attributes:
        out: PNG file to write
    """

    out: Path = option(metavar="FILE.png")


def run(options: Options) -> Paragraphs:
    """Draw the plot."""
    subjects = options.load()
    from megatape.lab.study.attention.patterns import draw

    return draw(subjects, options.out)
