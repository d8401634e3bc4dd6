"""Draws results.svg and its variants, dark and narrow, from the tables of docs/results/.

python docs/figures/draw.py
"""

import re
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from megatape.lab.pictures import DARK, LIGHT, dark_version, style

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parent / "results"
SUITE = "Rates from a grid, eight tasks, five seeds"
COLORS = {"tape": "C0", "rope": "C1", "path": "C2", "other": "C7"}


def table(page: str, heading: str) -> dict[str, list[str]]:
    """Cells of the first table below a heading of a page of docs/results/, by the name in the first column.

    A row without a number in its first cell, such as the paper's, is dropped if its name is there already.
    """
    text = (RESULTS / page).read_text().split(f" {heading}\n", 1)[1]
    rows = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert rows, f"{page}: no table below {heading!r}"
    cells = ([cell.strip(" `") for cell in row.strip()[1:-1].split("|")] for row in rows[0].splitlines())
    found: dict[str, list[str]] = {}
    for name, *values in cells:
        found.setdefault(name, values)
    return found


def numbers(cell: str) -> list[float]:
    """Numbers of a cell such as `79.6 ± 8.9` or `1.119 (1.090 to 1.145)`."""
    return [float(number.replace(",", "")) for number in re.findall(r"[\d.,]+(?:e-?\d+)?", cell)]


def draw(narrow: bool = False) -> Figure:
    """Equivariance, cost and accuracy beside each other, or below each other for the screen of a telephone."""
    figure = Figure(figsize=(4.6, 9.6) if narrow else (11, 3.5), layout="constrained")
    equivariance, cost, accuracy = figure.subplots(3) if narrow else figure.subplots(1, 3, width_ratios=(1, 0.75, 1.6))
    _draw_equivariance(equivariance)
    _draw_cost(cost)
    _draw_accuracy(accuracy)
    for axes in (equivariance, cost, accuracy):
        axes.tick_params(length=0)
        axes.grid(axis="y", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
    return figure


def _titles(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title, fontsize=10, loc="left", fontweight="bold")
    axes.set_xlabel(below)


def _legend(axes: Axes, **where: Any) -> None:
    axes.legend(frameon=False, handlelength=1.2, **where)


def _draw_equivariance(axes: Axes) -> None:
    rows = table("shift.md", "Shifted ids: attention difference, 10^-2, by layer")
    for name, color in (("tape_no_equivariance", "other"), ("rope", "rope"), ("tape", "tape")):
        values = [float(value) for value in rows[name]]
        label = "tape without equivariance" if color == "other" else name
        axes.plot(range(1, len(values) + 1), values, "o-", color=COLORS[color], label=label, markersize=3.5)
    axes.set_yscale("log")
    axes.set_ylim(1e-6, 1e3)
    _titles(
        axes,
        "Positions stay relative",
        "layer; attention that moves when all\npositions shift by 3, in % (lower is better)",
    )
    _legend(axes, loc="upper left")


def _draw_cost(axes: Axes) -> None:
    flops = table("efficiency.md", "Counts")
    steps = table("efficiency.md", "Training step, blocks alone")
    reference = numbers(flops["rope"][2])[0]
    groups = {
        "FLOPs": {name: [numbers(flops[name][2])[0] / reference] for name in ("tape", "fire")},
        "step": {name: numbers(steps[name][1]) for name in ("tape", "fire")},
        "memory": {name: numbers(flops[name][7]) for name in ("tape", "fire")},
    }
    for place, name in ((-0.5, "tape"), (0.5, "fire")):
        color = COLORS["tape" if name == "tape" else "other"]
        heights = [values[name][0] for values in groups.values()]
        places = [index + place * 0.3 for index in range(len(groups))]
        axes.bar(places, heights, 0.27, color=color, label=name)
        for x, height in zip(places, heights, strict=True):
            axes.text(x, height + 0.015, f"{height:.2f}", ha="center", fontsize=7.5)
    axes.axhline(1, color=COLORS["rope"], linewidth=1.5, label="rope = 1")
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(0, 1.75)
    _titles(axes, "Cost beside RoPE", "155M shape on a CPU,\nas a multiple of RoPE's (lower is better)")
    _legend(axes, loc="upper left", ncols=2, columnspacing=0.8)


def _draw_accuracy(axes: Axes) -> None:
    found = table("suite.md", SUITE)
    tasks = found[""]
    rows = {name: cells for name, cells in found.items() if "±" in cells[0]}
    # Encoding -> horizontal offset of its points from the middle of the task.
    shown = {"path": 0.2, "rope": -0.1, "tape": 0.1}
    others = [[numbers(cell)[0] for cell in cells] for name, cells in rows.items() if name not in shown]
    gray = axes.plot(list(zip(*others, strict=True)), "o", color=COLORS["other"], alpha=0.5, markersize=3)
    gray[0].set_label(f"{len(others)} others")
    for name, offset in shown.items():
        means, deviations = zip(*map(numbers, rows[name]), strict=True)
        places = [index + offset for index in range(len(tasks))]
        axes.errorbar(places, means, deviations, fmt="o", color=COLORS[name], markersize=4, elinewidth=0.8, label=name)
    axes.set_xticks(range(len(tasks)), [fill(task.replace("_", " "), 9) for task in tasks])
    axes.tick_params(axis="x", labelsize=7)
    axes.set_ylim(-3, 118)
    axes.set_yticks(range(0, 101, 25))
    _titles(
        axes,
        "Inputs unlike those of training",
        "accuracy in %, mean ± deviation of 5 seeds, each encoding\nat the rate that validation chose (higher is better)",
    )
    _legend(axes, loc="upper left", ncols=4)


if __name__ == "__main__":
    sizes: dict[Any, int] = dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8)
    matplotlib.rcParams.update({"svg.hashsalt": "megatape", "font.family": "DejaVu Sans"})
    for scheme in (LIGHT, DARK):
        with style(scheme), matplotlib.rc_context(sizes):
            for narrow, path in ((False, FOLDER / "results.svg"), (True, FOLDER / "results-narrow.svg")):
                draw(narrow).savefig(path if scheme is LIGHT else dark_version(path), metadata={"Date": None})
