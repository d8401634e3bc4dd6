"""Report of `finetune`: table, the paper's figures, and picture."""

import math
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from megatape.accounting.whole_model.parameters import count_trainable
from megatape.lab.paper import EXTENSION_PASSKEY, EXTENSION_PERPLEXITY, PaperTable
from megatape.lab.study.finetuning.methods import BASE
from megatape.lab.study.results.plots import Row, draw_curves
from megatape.lab.study.results.report import (
    are_evaluated_differently,
    columns_of,
    describe_shape,
    describe_training,
    write_report,
)
from megatape.lab.study.results.text_result import TextResult
from megatape.utils.text.tables import markdown
from megatape.utils.text.units import format_number

# Method -> its result, the base first.
Results = dict[str, TextResult]


def report(results: Results, original: int, command: str, out: Path) -> str:
    """Write finetune.md and finetune.png, and return the text.

    Args:
        results: Results by method.
        original: Number of tokens that the base is made for.
        command: The user's command line.
        out: Study folder.
    """
    *_, result = results.values()
    config = result.config
    setting = (
        f"{describe_shape(config.model)}, made for {original} tokens; {describe_training(config)}. `{BASE}` is the "
        "model without training and without scaling. Every length has the same validation text."
    )
    paragraphs = [f"    {command}", setting, _table(results)]
    tables = {
        "The paper's perplexity, Llama 2 7B from 4096 to 8192 tokens (windows every 256 tokens):": EXTENSION_PERPLEXITY,
        "The paper's passkey accuracy (%) there, by its own prompts of about this many tokens:": {"passkey": EXTENSION_PASSKEY},
    }
    for title, table in tables.items():
        published = _published(list(results), table)
        if published is not None:
            paragraphs += [title, published]
    rows = [Row(name, [result]) for name, result in results.items()]
    return write_report("finetune", paragraphs, lambda figure: _draw(figure, rows, original), out)


def _table(results: Results) -> str:
    """Return a table with a row for each method, starting with the columns that the base lacks."""
    distinguish = are_evaluated_differently(results.values())
    columns_by_name = {name: columns_of(result, distinguish) for name, result in results.items()}
    titles: dict[str, None] = {}
    for columns in reversed(columns_by_name.values()):
        titles |= dict.fromkeys(columns)
    rows = []
    for name, result in results.items():
        training = result.config.training
        num_trained = 0
        if name != BASE:
            num_trained = count_trainable(result.config.model, training.trainable, training.frozen)
        columns = columns_by_name[name]
        cells = [format_number(columns.get(title, math.nan)) for title in titles]
        rows.append([f"`{name}`", f"{num_trained:,}", *cells])
    return markdown(["method", "trained parameters", *titles], rows)


def _published(names: list[str], table: dict[str, PaperTable]) -> str | None:
    """Return the paper's figures for these methods, None if it has none of them.

    Args:
        names: Method names.
        table: Figures of each quantity.
    """
    rows = []
    for name in names:
        if not all(name in quantity.rows for quantity in table.values()):
            continue
        row = [f"`{name}`"]
        for quantity in table.values():
            row += [f"{value:.4g}" for value in quantity.rows[name]]
        rows.append(row)
    if not rows:
        return None
    header = ["method"]
    for name, quantity in table.items():
        header += [f"{name} at {length}" for length in quantity.lengths]
    return markdown(header, rows)


def _draw(figure: Figure, rows: list[Row], original: int) -> None:
    """Draw loss curves, and perplexity by length with a line at the original length."""
    draw_curves(figure, rows)
    losses, measured = figure.axes
    losses.set_yscale("linear")
    measured.set_yscale("log")
    measured.axvline(original, color="gray", linewidth=0.8)
    lengths = list(rows[0].results[0].curve)
    measured.set_xticks(lengths, [str(length) for length in lengths])
    # Label with plain numbers instead of powers of ten.
    measured.yaxis.set_major_formatter(LogFormatter())
    measured.yaxis.set_minor_formatter(LogFormatter())
