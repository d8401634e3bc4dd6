"""Table and plot of a comparison: means over seeds, with their range."""

from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from megatape.model.accounting import count_parameters
from megatape.study.outcome import Outcome
from megatape.tables import markdown

Metrics = dict[str, float]
Row = tuple[str, list[Outcome]]  # label of a variant, and one outcome per seed


def report(rows: list[Row], command: str, out: Path) -> str:
    """Write comparison.md and comparison.png into `out`; returns the text of the former.

    rows: the others are compared with the first. command: what the user typed.
    """
    config = rows[0][1][0].config
    training, data, model = config.training, config.data, config.model
    setting = (
        f"{model.num_layers} layers of width {model.hidden_size}, {training.steps} steps of {training.global_batch_size} x "
        f"{data.sequence_length} tokens of {data.path}, {training.precision}. Mean over seeds (minimum to maximum)."
    )
    lines = [f"    {command}", setting, _table(rows, {label: [one.figures for one in outcomes] for label, outcomes in rows})]
    first, reference = rows[0][0], {outcome.seed: outcome.figures for outcome in rows[0][1]}
    differences = {
        label: [_minus(one.figures, reference[one.seed]) for one in outcomes if one.seed in reference]
        for label, outcomes in rows[1:]
    }
    if any(differences.values()):
        lines += [f"Difference from `{first}` of the same seed:", _table(rows[1:], differences)]
    text = "\n\n".join(lines)
    (out / "comparison.md").write_text(text + "\n", encoding="utf-8")
    _picture(rows).savefig(out / "comparison.png", dpi=150)
    return f"{text}\n\nwrote {out / 'comparison.md'}, {out / 'comparison.png'}"


def _table(rows: list[Row], metrics: dict[str, list[Metrics]]) -> str:
    columns = list(dict.fromkeys(name for seeds in metrics.values() for one in seeds for name in one))
    return markdown(
        ["encoding", "parameters", "seeds", *columns],
        (
            [
                f"`{label}`",
                f"{count_parameters(outcomes[0].config.model).total:,}",
                str(len(metrics[label])),
                *(_spread([one[column] for one in metrics[label] if column in one]) for column in columns),
            ]
            for label, outcomes in rows
        ),
    )


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{short(fmean(values))} ({short(min(values))} to {short(max(values))})"


def short(value: float) -> str:
    """A number with about four digits."""
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def _minus(metrics: Metrics, reference: Metrics) -> Metrics:
    return {name: value - reference[name] for name, value in metrics.items() if name in reference}


def _picture(rows: list[Row]) -> Figure:
    """Loss curves, and results by length: a line for the mean over seeds, a band from the minimum to the maximum."""
    figure = Figure(figsize=(13, 5), layout="constrained")
    losses, measured = figure.subplots(1, 2)
    colours = colormaps["turbo"](np.linspace(0.05, 0.95, len(rows)))
    for colour, (label, outcomes) in zip(colours, rows, strict=True):
        scaled = outcomes[0].scaling is not None
        if not scaled:
            _band(losses, [outcome.losses for outcome in outcomes], label, colour, "-")
        _band(measured, [outcome.curve for outcome in outcomes], label, colour, "--" if scaled else "-")
    x, y = rows[0][1][0].axes
    losses.set(xlabel="step", ylabel="training loss (nats)", yscale="log")
    measured.set(xlabel=x, ylabel=y)
    if x == "tokens":
        measured.set_xscale("log", base=2)
    measured.set_xticks(list(rows[0][1][0].curve))
    measured.legend(fontsize="small")
    return figure


def _band(axes: Axes, curves: list[dict[int, float]], label: str, colour: np.ndarray, style: str) -> None:
    steps = list(curves[0])
    values = [[curve[step] for curve in curves] for step in steps]
    axes.plot(steps, [fmean(each) for each in values], style, color=colour, label=label)
    axes.fill_between(steps, [min(each) for each in values], [max(each) for each in values], color=colour, alpha=0.15)
