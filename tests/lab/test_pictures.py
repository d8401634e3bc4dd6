"""Pictures for light and dark backgrounds, with enough contrast."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from megatape.lab.pictures import DARK, LIGHT, Scheme, bars, dark_version, save
from tests.helpers.checks.contrast import contrast


def rgb(color: str) -> str:
    """Return a color #rrggbb as a browser writes it."""
    red = int(color[1:3], 16)
    green = int(color[3:5], 16)
    blue = int(color[5:7], 16)
    return f"rgb({red}, {green}, {blue})"


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(scheme: Scheme) -> None:
    """The Web Content Accessibility Guidelines ask for 4.5 to 1 for text and 3 to 1 for lines."""
    for ground, text in product((scheme.ground, scheme.panel), (scheme.text, scheme.quiet, scheme.link)):
        assert contrast(rgb(text), rgb(ground)) >= 4.5, text
    for curve in scheme.curves:
        assert contrast(rgb(curve), rgb(scheme.ground)) >= 3, curve


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_curves_have_different_colors(scheme: Scheme) -> None:
    assert len(scheme.curves) == 10
    assert len(set(scheme.curves)) == 10


def colors(picture: Path) -> set[str]:
    pixels = np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3)
    return {f"#{pixel.tobytes().hex()}" for pixel in np.unique(pixels, axis=0)}


def test_picture_is_drawn_in_both_schemes(tmp_path: Path) -> None:
    """Formulas in a title are text."""
    path = tmp_path / "picture.png"

    save(path, lambda figure: bars(figure, {"a": (50.0, 1.0), "b": (100.0, None)}, "%"), "$\\frac$ a_b")

    dark = dark_version(path)
    assert Image.open(path).size == Image.open(dark).size
    assert {LIGHT.ground, *LIGHT.curves[:2]} <= colors(path)
    assert {DARK.ground, *DARK.curves[:2]} <= colors(dark)


def test_eleventh_curve_is_dashed(tmp_path: Path) -> None:
    """The eleventh curve has the color of the first one."""
    drawn = []

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        drawn.append([axes.plot([0, number])[0] for number in range(11)])

    save(tmp_path / "many.png", draw)

    for scheme, lines in zip((LIGHT, DARK), drawn, strict=True):
        assert [line.get_color() for line in lines] == [*scheme.curves, scheme.curves[0]]
        assert [line.get_linestyle() for line in lines] == ["-"] * 10 + ["--"]
