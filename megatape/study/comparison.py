"""A comparison as a table and a picture: means over seeds, and their spread."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from megatape.config import Config
from megatape.model.accounting import count_parameters
from megatape.study.outcome import Outcome
from megatape.study.table import table

POINTS = 50  # of a loss curve, each the mean of as many steps

Figures = dict[str, float]


@dataclass(frozen=True)
class Trained:
    """A run that is complete: its configuration, what it was measured by, its metrics.jsonl, and the scaling of the measurement."""

    config: Config
    outcome: Outcome
    metrics: Path
    scaling: str | None

    @property
    def seed(self) -> int:
        """Its training.seed."""
        return self.config.training.seed

    def figures(self) -> Figures:
        """Columns of the table. The validation loss is one of training, before any scaling."""
        if self.scaling:
            return self.outcome.figures
        losses = [entry["validation_loss"] for entry in self._entries() if "validation_loss" in entry]
        return {"validation loss": losses[-1]} | self.outcome.figures

    def loss_curve(self) -> dict[int, float]:
        """Mean training loss (nats) of POINTS equal parts of the run, by the last step of each."""
        losses = [entry["loss"] for entry in self._entries()]
        ends = [len(losses) * part // POINTS for part in range(POINTS + 1)]
        return {end: fmean(losses[begin:end]) for begin, end in itertools.pairwise(ends) if begin < end}

    def _entries(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in self.metrics.read_text(encoding="utf-8").splitlines()]


def report(base: Config, source: str, rows: list[tuple[str, list[Trained]]], out: Path) -> str:
    """Write comparison.md and comparison.png into `out`; returns the text of the former.

    source: the configuration, as it was given. rows: label and runs of each variant; the first is what others are set beside."""
    if not rows:
        return "nothing was trained"
    training, data = base.training, base.data
    lines = [
        (
            f"{source}: {base.model.num_layers} layers of width {base.model.hidden_size}, {training.steps} steps of "
            f"{training.global_batch_size} x {data.sequence_length} tokens of {data.path}, {training.precision}. "
            "Mean over seeds (least to greatest)."
        ),
        _table(rows, {label: [run.figures() for run in runs] for label, runs in rows}),
    ]
    first, reference = rows[0][0], {run.seed: run.figures() for run in rows[0][1]}
    differences = {
        label: [_minus(run.figures(), reference[run.seed]) for run in runs if run.seed in reference] for label, runs in rows[1:]
    }
    if any(differences.values()):
        lines += [f"Difference from `{first}` of the same seed:", _table(rows[1:], differences)]
    text = "\n\n".join(lines)
    (out / "comparison.md").write_text(text + "\n", encoding="utf-8")
    _picture(rows).savefig(out / "comparison.png", dpi=150)
    return f"{text}\n\nwrote {out / 'comparison.md'}, {out / 'comparison.png'}"


def _table(rows: list[tuple[str, list[Trained]]], figures: dict[str, list[Figures]]) -> str:
    columns = list(dict.fromkeys(name for found in figures.values() for one in found for name in one))
    return table(
        ["encoding", "parameters", "seeds", *columns],
        (
            [
                f"`{label}`",
                f"{count_parameters(runs[0].config.model).total:,}",
                str(len(figures[label])),
                *(_spread([one[column] for one in figures[label] if column in one]) for column in columns),
            ]
            for label, runs in rows
        ),
    )


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{_short(fmean(values))} ({_short(min(values))} to {_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def _minus(figures: Figures, reference: Figures) -> Figures:
    return {name: value - reference[name] for name, value in figures.items() if name in reference}


def _picture(rows: list[tuple[str, list[Trained]]]) -> Figure:
    """Loss curves, and what was measured by length: a line for the mean over seeds, a band from the least to the greatest."""
    figure = Figure(figsize=(13, 5), layout="constrained")
    losses, measured = figure.subplots(1, 2)
    colours = colormaps["turbo"](np.linspace(0.05, 0.95, len(rows)))
    for colour, (label, runs) in zip(colours, rows, strict=True):
        style = "--" if runs[0].scaling else "-"
        if not runs[0].scaling:
            _band(losses, [run.loss_curve() for run in runs], label, colour, style)
        _band(measured, [run.outcome.curve for run in runs], label, colour, style)
    losses.set(xlabel="step", ylabel="training loss (nats)", yscale="log")
    x, y = rows[0][1][0].outcome.axes
    measured.set(xlabel=x, ylabel=y, xticks=list(rows[0][1][0].outcome.curve))
    if x == "tokens":
        measured.set_xscale("log", base=2)
    measured.legend(fontsize="small")
    return figure


def _band(axes: Axes, curves: list[dict[int, float]], label: str, colour: np.ndarray, style: str) -> None:
    steps = list(curves[0])
    values = [[curve[step] for curve in curves] for step in steps]
    axes.plot(steps, [fmean(each) for each in values], style, color=colour, label=label)
    axes.fill_between(steps, [min(each) for each in values], [max(each) for each in values], color=colour, alpha=0.15)
