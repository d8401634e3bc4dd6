"""Pictures read well on light and dark grounds, and are what the schemes say."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from megatape.lab.pictures import DARK, LIGHT, Scheme, bars, dark_version, save
from tests.helpers.checks.contrast import contrast


def rgb(color: str) -> str:
    """A color #rrggbb as a browser writes it."""
    return f"rgb({', '.join(str(int(color[place : place + 2], 16)) for place in (1, 3, 5))})"


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(scheme: Scheme) -> None:
    """4.5 to 1 for text and 3 to 1 for lines, as the Web Content Accessibility Guidelines ask for; curves are all different."""
    for ground in (scheme.ground, scheme.panel):
        for text in (scheme.text, scheme.quiet, scheme.link):
            assert contrast(rgb(text), rgb(ground)) >= 4.5, text
    for curve in scheme.curves:
        assert contrast(rgb(curve), rgb(scheme.ground)) >= 3, curve
    assert len(set(scheme.curves)) == len(scheme.curves) == 10


def test_both_schemes(tmp_path: Path) -> None:
    """The same picture, in each scheme's colors; a title is no formula."""
    path = tmp_path / "picture.png"
    save(path, lambda figure: bars(figure, {"a": (50.0, 1.0), "b": (100.0, None)}, "%"), "$\\frac$ a_b")
    pictures = {scheme: Image.open(file).convert("RGB") for scheme, file in ((LIGHT, path), (DARK, dark_version(path)))}
    assert pictures[LIGHT].size == pictures[DARK].size
    for scheme, picture in pictures.items():
        pixels = np.unique(np.asarray(picture).reshape(-1, 3), axis=0)
        assert {scheme.ground, scheme.curves[0], scheme.curves[1]} <= {f"#{pixel.tobytes().hex()}" for pixel in pixels}


def test_many_curves(tmp_path: Path) -> None:
    """The eleventh has the first one's color, with dashes."""
    drawn = []

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        drawn.append([axes.plot([0, number])[0] for number in range(11)])

    save(tmp_path / "many.png", draw)
    for scheme, lines in zip((LIGHT, DARK), drawn, strict=True):
        assert [line.get_color() for line in lines] == [*scheme.curves, scheme.curves[0]]
        assert [line.get_linestyle() for line in lines] == ["-"] * 10 + ["--"]
