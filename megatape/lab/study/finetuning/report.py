"""Report on methods that extend a model's context: the table, the paper's figures, and the picture."""

import math
from pathlib import Path

from megatape.accounting.parameters import count_trainable
from megatape.lab.paper import EXTENSION_PASSKEY, EXTENSION_PERPLEXITY, PaperTable
from megatape.lab.study.finetuning.curves import draw_extension
from megatape.lab.study.finetuning.methods import BASE
from megatape.lab.study.outcomes.curves import Row
from megatape.lab.study.outcomes.outcome import Outcome
from megatape.lab.study.outcomes.report import (
    are_evaluated_differently,
    describe_shape,
    describe_training,
    figures_of,
    write_report,
)
from megatape.utils.tables import markdown
from megatape.utils.units import format_number

# Results by method, the base first.
Outcomes = dict[str, Outcome]


def report(outcomes: Outcomes, original: int, command: str, out: Path) -> str:
    """Write finetune.md and finetune.png, and return the text.

    Args:
        outcomes: Results by method.
        original: Number of tokens that the base is made for.
        command: Command line of the user.
        out: Folder of the comparison.
    """
    *_, outcome = outcomes.values()
    config = outcome.config
    setting = (
        f"{describe_shape(config.model)}, made for {original} tokens; {describe_training(config)}. `{BASE}` is the "
        "model without training and without scaling. Every length has the same validation text."
    )
    paragraphs = [f"    {command}", setting, _table(outcomes)]
    tables = {
        "The paper's perplexity, Llama 2 7B from 4096 to 8192 tokens (windows every 256 tokens):": EXTENSION_PERPLEXITY,
        "The paper's passkey accuracy (%) there, by its own prompts of about so many tokens:": {"passkey": EXTENSION_PASSKEY},
    }
    for title, table in tables.items():
        published = _published(list(outcomes), table)
        if published is not None:
            paragraphs += [title, published]
    rows = [Row(name, [outcome]) for name, outcome in outcomes.items()]
    return write_report("finetune", paragraphs, lambda figure: draw_extension(figure, rows, original), out)


def _table(outcomes: Outcomes) -> str:
    """Return a table with a row for each method. Columns that the base lacks are the first."""
    distinguish = are_evaluated_differently(outcomes.values())
    figures_by_name = {name: figures_of(outcome, distinguish) for name, outcome in outcomes.items()}
    columns: dict[str, None] = {}
    for figures in reversed(figures_by_name.values()):
        columns |= dict.fromkeys(figures)
    rows = []
    for name, outcome in outcomes.items():
        training = outcome.config.training
        num_trained = 0
        if name != BASE:
            num_trained = count_trainable(outcome.config.model, training.trainable, training.frozen)
        figures = figures_by_name[name]
        cells = [format_number(figures.get(column, math.nan)) for column in columns]
        rows.append([f"`{name}`", f"{num_trained:,}", *cells])
    return markdown(["method", "trained parameters", *columns], rows)


def _published(names: list[str], table: dict[str, PaperTable]) -> str | None:
    """Return the paper's figures for these methods, None if it has none of them.

    Args:
        names: Names of methods.
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
