"""A heat map over two quantities."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Grid:
    """Shares (0 to 1) of a measure: rows over the vertical axis, columns over the horizontal one.

    labels: of the horizontal and the vertical axis. ticks: what stands at each column and row; None: 1, 2, ...
    num_framed: the first rows and columns, which get a frame; 0: none.
    """

    shares: list[list[float]]
    measure: str
    labels: tuple[str, str]
    ticks: tuple[list[Any], list[Any]] | None = None
    num_framed: int = 0


def draw_heat_map(grid: Grid, title: str, path: Path) -> None:
    """Write a PNG of the grid, whose shares appear in percent."""
    from matplotlib.figure import Figure

    rows, columns = len(grid.shares), len(grid.shares[0])
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    extent = (0.5, columns + 0.5, 0.5, rows + 0.5)
    percent = [[100 * share for share in row] for row in grid.shares]
    image = axes.imshow(percent, vmin=0, vmax=100, origin="lower", extent=extent, aspect="auto")
    if grid.ticks:
        axes.set_xticks(range(1, columns + 1), grid.ticks[0])
        axes.set_yticks(range(1, rows + 1), grid.ticks[1])
    if grid.num_framed:
        right, top = min(grid.num_framed, columns) + 0.5, min(grid.num_framed, rows) + 0.5
        axes.plot([0.5, right, right], [top, top, 0.5], color="red")
    axes.set(xlabel=grid.labels[0], ylabel=grid.labels[1])
    axes.set_title(title, fontsize="small")
    figure.colorbar(image, label=grid.measure)
    figure.savefig(path, dpi=150)
