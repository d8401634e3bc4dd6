"""Plot of methods that extend a model's context: loss curves, and perplexity by length."""

from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from megatape.lab.study.outcomes.curves import Row, draw_curves


def draw_extension(figure: Figure, rows: list[Row], original: int) -> None:
    """Draw the curves of methods that extend a model's context.

    Args:
        figure: Figure to draw on.
        rows: Outcomes of the methods.
        original: Original length of the model, which is marked.
    """
    draw_curves(figure, rows)
    losses, measured = figure.axes
    losses.set_yscale("linear")
    measured.set_yscale("log")
    measured.axvline(original, color="gray", linewidth=0.8)
    lengths = list(rows[0].outcomes[0].curve)
    measured.set_xticks(lengths, [str(length) for length in lengths])
    # Numbers in place of powers of ten.
    measured.yaxis.set_major_formatter(LogFormatter())
    measured.yaxis.set_minor_formatter(LogFormatter())
