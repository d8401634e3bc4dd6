"""Table and plot of `megatape study finetune`, with the paper's figures beside them."""

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from megatape.model.accounting import count_trainable
from megatape.paper import EXTENSION_PASSKEY, EXTENSION_PERPLEXITY, PaperTable
from megatape.study.comparison import short
from megatape.study.methods import BASE
from megatape.study.outcome import Outcome
from megatape.tables import markdown

Outcomes = dict[str, Outcome]  # by method


def report(outcomes: Outcomes, original: int, command: str, out: Path) -> str:
    """Write finetune.md and finetune.png into `out`; returns the text of the former.

    original: tokens that the base is made for. command: what the user typed.
    """
    *_, outcome = outcomes.values()
    config = outcome.config
    training, data, model = config.training, config.data, config.model
    setting = (
        f"{model.num_layers} layers of width {model.hidden_size}, made for {original} tokens; {training.steps} steps of "
        f"{training.global_batch_size} x {data.sequence_length} tokens of {data.path}, {training.precision}. `{BASE}` is the "
        "model without training and without scaling. Every length has the same validation text."
    )
    parts = [f"    {command}", setting, _table(outcomes)]
    tables = {
        "The paper's perplexity, Llama 2 7B from 4096 to 8192 tokens (windows every 256 tokens):": EXTENSION_PERPLEXITY,
        "The paper's passkey accuracy (%) there, by its own prompts of about so many tokens:": {"passkey": EXTENSION_PASSKEY},
    }
    for title, table in tables.items():
        if published := _published(list(outcomes), table):
            parts += [title, published]
    text = "\n\n".join(parts)
    (out / "finetune.md").write_text(text + "\n", encoding="utf-8")
    _picture(outcomes, original).savefig(out / "finetune.png", dpi=150)
    return f"{text}\n\nwrote {out / 'finetune.md'}, {out / 'finetune.png'}"


def _table(outcomes: Outcomes) -> str:
    columns = list(dict.fromkeys(name for outcome in reversed(outcomes.values()) for name in outcome.figures))
    return markdown(
        ["method", "trained parameters", *columns],
        (
            [f"`{name}`", f"{_trained(name, outcome):,}", *(_cell(outcome.figures.get(column)) for column in columns)]
            for name, outcome in outcomes.items()
        ),
    )


def _trained(name: str, outcome: Outcome) -> int:
    training = outcome.config.training
    return 0 if name == BASE else count_trainable(outcome.config.model, training.trainable, training.frozen)


def _cell(value: float | None) -> str:
    return "" if value is None else short(value)


def _published(names: list[str], table: dict[str, PaperTable]) -> str:
    """The paper's figures for these methods, or "" if it has none. table: quantity -> its figures."""
    rows = [
        [f"`{name}`", *(f"{value:.4g}" for quantity in table.values() for value in quantity.rows[name])]
        for name in names
        if all(name in quantity.rows for quantity in table.values())
    ]
    columns = [f"{name} at {length}" for name, quantity in table.items() for length in quantity.lengths]
    return markdown(["method", *columns], rows) if rows else ""


def _picture(outcomes: Outcomes, original: int) -> Figure:
    """Loss curves, and perplexity by length with the base's own length marked."""
    figure = Figure(figsize=(13, 5), layout="constrained")
    losses, measured = figure.subplots(1, 2)
    colours = colormaps["turbo"](np.linspace(0.05, 0.95, len(outcomes)))
    for colour, (name, outcome) in zip(colours, outcomes.items(), strict=True):
        if outcome.losses:
            losses.plot(list(outcome.losses), list(outcome.losses.values()), color=colour, label=name)
        style = ".--" if name == BASE else ".-"
        measured.plot(list(outcome.curve), list(outcome.curve.values()), style, color=colour, label=name)
    measured.axvline(original, color="grey", linewidth=0.8)
    losses.set(xlabel="step", ylabel="training loss (nats)")
    measured.set(xlabel="tokens", ylabel="perplexity", yscale="log")
    measured.set_xscale("log", base=2)
    lengths = next(iter(outcomes.values())).curve
    measured.set_xticks(list(lengths), list(map(str, lengths)))
    measured.yaxis.set_major_formatter(LogFormatter())  # numbers, not powers of ten
    measured.yaxis.set_minor_formatter(LogFormatter())
    measured.legend(fontsize="small")
    return figure
