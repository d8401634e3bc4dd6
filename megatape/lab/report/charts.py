"""Charts in the form drawn by chart.js. Numbers that are not finite become None."""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Series:
    """A curve with a band around it.

    Attributes:
        group: Index of the labeled run group.
        style: "line" or "points".
        x: Horizontal coordinates.
        y: Vertical coordinates.
        low: Lower band edge.
        high: Upper band edge.
    """

    group: int
    style: str = "line"
    x: list[float | None] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)

    def add(self, x: float, y: float, low: float, high: float) -> None:
        """Add a point."""
        self.x.append(rounded(x))
        self.y.append(rounded(y))
        self.low.append(rounded(low))
        self.high.append(rounded(high))


@dataclass(frozen=True)
class HorizontalLine:
    """A labeled line across a chart, at a vertical coordinate."""

    label: str
    y: float | None


@dataclass(frozen=True)
class Mark:
    """A marked event of a group, at a horizontal coordinate."""

    group: int
    x: int
    label: str


@dataclass(frozen=True)
class Chart:
    """A chart over steps, lengths or distances.

    Attributes:
        title: Title above the chart.
        unit: Unit on the vertical axis.
        axis: Horizontal axis title. The axis begins at 0.
        last: Horizontal axis end.
        series: Curves.
        span: Values to include in the vertical axis.
        log: Whether the vertical axis is logarithmic.
        wide: Whether the chart spans the page.
        lines: Horizontal lines.
        noisy: Whether readers may smooth the curves.
        clocked: Whether readers may switch the horizontal axis from steps to tokens and hours.
        marks: Marked events.
    """

    title: str
    unit: str
    axis: str
    last: int
    series: list[Series]
    span: tuple[float, ...] = ()
    log: bool = False
    wide: bool = False
    lines: list[HorizontalLine] = field(default_factory=list)
    noisy: bool = False
    clocked: bool = False
    marks: list[Mark] = field(default_factory=list)


def rounded(value: float) -> float | None:
    """Round a number to six digits for JSON. Return None if it is not finite."""
    if not np.isfinite(value):
        return None
    return float(f"{value:.6g}")
