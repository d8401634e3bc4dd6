"""Table and plot of `megatape study finetune`, with the paper's figures beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from megatape.model.accounting import count_trainable
from megatape.study.methods import BASE
from megatape.study.outcome import Outcome
from megatape.study.pictures import Line, draw_extension
from megatape.study.report import describe_shape, describe_training, short, write_report
from megatape.tables import markdown
from megatape.tasks import passkey, perplexity

Outcomes = dict[str, Outcome]  # by method
PaperFigures = Mapping[str, Mapping[str, Sequence[float]]]  # quantity -> method -> value at each length


def report(outcomes: Outcomes, original: int, command: str, out: Path) -> str:
    """Write finetune.md and finetune.png into `out`; returns the text of the former.

    original: tokens that the base is made for. command: what the user typed.
    """
    *_, outcome = outcomes.values()
    setting = (
        f"{describe_shape(outcome.config)}, made for {original} tokens; {describe_training(outcome.config)}. `{BASE}` is the "
        "model without training and without scaling. Every length has the same validation text."
    )
    parts = [f"    {command}", setting, _table(outcomes)]
    passkeys = {name: tuple(100 * share for share in shares) for name, shares in passkey.PAPER.items()}
    for title, lengths, figures in (
        (
            "The paper's perplexity, Llama 2 7B from 4096 to 8192 tokens (windows every 256 tokens):",
            perplexity.PAPER_LENGTHS,
            perplexity.PAPER,
        ),
        (
            "The paper's passkey accuracy (%) there, by its own prompts of about so many tokens:",
            passkey.AUTHORS_LENGTHS,
            {"passkey": passkeys},
        ),
    ):
        if published := _published(list(outcomes), lengths, figures):
            parts += [title, published]
    lines = [Line(name, [each.losses], [each.curve], ".--" if name == BASE else ".-") for name, each in outcomes.items()]
    return write_report("finetune", parts, draw_extension(lines, outcome.axes, original), out)


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


def _published(names: list[str], lengths: Sequence[int], figures: PaperFigures) -> str:
    """The paper's figures of these methods at these lengths, or "" if it has none."""
    tables = [{name.lower(): values for name, values in methods.items()} for methods in figures.values()]
    rows = [
        [f"`{name}`", *(f"{value:.4g}" for table in tables for value in table[name])]
        for name in names
        if all(name in table for table in tables)
    ]
    columns = [f"{quantity} at {length}" for quantity in figures for length in lengths]
    return markdown(["method", *columns], rows) if rows else ""
