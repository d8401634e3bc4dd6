"""megatape study shift: `megatape study shift runs/rope/checkpoints/step-00000500 runs/tape/checkpoints/step-00000500`."""

from megatape.commands.study.options import SubjectOptions
from megatape.utils.options import Paragraphs, option


class Options(SubjectOptions):
    """Models to compare with themselves, shifted.

    Attributes:
        shift: number of added tokens, or first position id
    """

    shift: int = option(3, metavar="S")


def run(options: Options) -> Paragraphs:
    """Measure."""
    subjects = options.load()
    from megatape.lab.study.attention.shift import report

    return report(subjects, options.shift)
