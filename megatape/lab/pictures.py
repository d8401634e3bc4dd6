"""Style of pictures and pages in light and dark color schemes, and charts shared by several of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.utils.files.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
# Width of error-bar caps.
CAP_POINTS = 3


@dataclass(frozen=True)
class Scheme:
    """Colors as #rrggbb. All text has a contrast of at least 4.5 to 1 with ground and panel.

    Attributes:
        ground: Background of pages and pictures.
        panel: Background of panels.
        text: Ordinary text.
        quiet: Less important text.
        line: Lines and borders.
        link: Links.
        curves: Colors of curves, in order of use.
    """

    ground: str
    panel: str
    text: str
    quiet: str
    line: str
    link: str
    curves: tuple[str, ...]


LIGHT = Scheme(
    ground="#ffffff",
    panel="#f6f8fa",
    text="#1c2128",
    quiet="#59636e",
    line="#d4d9df",
    link="#0759b5",
    curves=("#1f6fb4", "#d1570a", "#24803a", "#b3261e", "#7a4fb5", "#86523f", "#c0398f", "#5f6670", "#7d7a00", "#07808f"),
)
DARK = Scheme(
    ground="#12161c",
    panel="#1b2129",
    text="#e4e9ef",
    quiet="#9aa5b1",
    line="#38414c",
    link="#7db8ff",
    curves=("#6cb0f0", "#ff9d55", "#63c97a", "#ff7b72", "#bb96f2", "#cf9d89", "#f285c8", "#adb5bf", "#cdca4a", "#4fcbdb"),
)


def save(path: Path, draw: Callable[["Figure"], object], title: str = "") -> None:
    """Write a picture as two PNG files: `path` for light backgrounds and `dark_version(path)` for dark ones.

    Args:
        path: File ending in .png.
        draw: Draws on an empty figure. Curves take the scheme's colors in turn, then again with dashes. "C0" to "C9" name
            the colors.
        title: Title above the picture, without formulas: "$" is an ordinary character.
    """
    from matplotlib.figure import Figure

    for scheme, file in ((LIGHT, path), (DARK, dark_version(path))):
        with style(scheme):
            figure = Figure(layout="constrained")
            draw(figure)
            if title:
                figure.suptitle(title.replace("$", r"\$"), fontsize="small")
            content = BytesIO()
            figure.savefig(content, dpi=DPI, format="png")
            # Others may read the last picture.
            write_atomically(file, content.getvalue())


def dark_version(path: Path) -> Path:
    """Return the path of a picture's dark version."""
    return path.with_stem(f"{path.stem}-dark")


@contextmanager
def style(scheme: Scheme) -> Iterator[None]:
    """Set the style for figures created and saved in the block."""
    import matplotlib
    from matplotlib.rcsetup import cycler

    settings: Any = {
        "axes.prop_cycle": cycler(linestyle=("-", "--")) * cycler(color=scheme.curves),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "legend.fontsize": "small",
    }
    names_of_color = {
        scheme.ground: ("figure.facecolor", "axes.facecolor", "legend.facecolor", "savefig.facecolor"),
        scheme.line: ("axes.edgecolor", "legend.edgecolor", "grid.color"),
        scheme.quiet: ("xtick.color", "ytick.color"),
        scheme.text: ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"),
    }
    for color, names in names_of_color.items():
        settings |= dict.fromkeys(names, color)
    with matplotlib.rc_context(settings):
        yield


@dataclass(frozen=True)
class Grid:
    """Shares (0 to 1) of a measure over two quantities.

    Attributes:
        shares: Shares by row (vertical axis) and column (horizontal axis).
        measure: Measure name.
        labels: Labels of the horizontal and vertical axes.
        ticks: Column labels and row labels. None for 1, 2, ...
        num_framed: Number of leading rows and columns to frame, 0 for no frame.
    """

    shares: list[list[float]]
    measure: str
    labels: tuple[str, str]
    ticks: tuple[list[Any], list[Any]] | None = None
    num_framed: int = 0


def heat_map(figure: "Figure", grid: Grid) -> None:
    """Draw a grid as a heat map in percent."""
    rows = len(grid.shares)
    columns = len(grid.shares[0])
    figure.set_size_inches(6, 5)
    axes = figure.add_subplot()
    extent = (0.5, columns + 0.5, 0.5, rows + 0.5)
    percent = []
    for row in grid.shares:
        percent.append([100 * share for share in row])
    image = axes.imshow(percent, vmin=0, vmax=100, origin="lower", extent=extent, aspect="auto")
    axes.grid(visible=False)
    axes.locator_params(integer=True)
    if grid.ticks:
        axes.set_xticks(range(1, columns + 1), grid.ticks[0])
        axes.set_yticks(range(1, rows + 1), grid.ticks[1])
    if grid.num_framed:
        right = min(grid.num_framed, columns) + 0.5
        top = min(grid.num_framed, rows) + 0.5
        axes.plot([0.5, right, right], [top, top, 0.5], color="C3")
    axes.set(xlabel=grid.labels[0], ylabel=grid.labels[1])
    figure.colorbar(image, label=grid.measure)


def bars(figure: "Figure", values: dict[str, tuple[float, float | None]], unit: str) -> None:
    """Draw a bar for each value.

    Args:
        figure: Figure to draw on.
        values: Value from 0 to 100 and standard error (or None) by name.
        unit: Axis label.
    """
    figure.set_size_inches(7, 1.5 + 0.4 * len(values))
    axes = figure.add_subplot()
    lengths = []
    errors = []
    for value, error in values.values():
        lengths.append(value)
        errors.append(error or 0.0)
    axes.barh(list(values), lengths, xerr=errors, ecolor="C1", capsize=CAP_POINTS)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set(xlabel=unit, xlim=(0, 100))
