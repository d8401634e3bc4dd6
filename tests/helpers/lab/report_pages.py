"""Pages written by `megatape report`, their charts and tables."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.helpers.processes.command import Command


class ReportPage(NamedTuple):
    """A report page.

    Attributes:
        text: HTML, without places where a name may be broken.
        content: Data behind its charts.
        errors: Text printed as errors.
    """

    text: str
    content: dict[str, Any]
    errors: str


def page_of(command: Command, output: Path, *words: object) -> ReportPage:
    """Run `megatape report WORDS --output OUTPUT`, checking that it only writes the page. Returns the page."""
    status, printed, errors = command("report", *words, "--output", output)
    assert status == 0, errors
    page = output / "index.html"
    assert f"wrote {page}" in printed
    assert list(output.iterdir()) == [page]
    text = page.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data
    return ReportPage(text.replace("<wbr>", ""), json.loads(data[1], parse_constant=pytest.fail), errors)


def curve(content: dict[str, Any], title: str, group: int, style: str = "line") -> dict[str, list[float]]:
    """Return a curve in a chart, without its group and style."""
    (chart,) = [chart for chart in content["charts"] if chart["title"] == title]
    (series,) = [series for series in chart["series"] if series["group"] == group and series["style"] == style]
    return {name: series[name] for name in ("x", "y", "low", "high")}


def row_cells(text: str, label: str) -> list[str]:
    """Return the cells in the first table row with this label."""
    row = re.search(rf"<tr[^>]*><th scope=\"row\">{re.escape(label)}</th>(.*?)</tr>", text)
    assert row, label
    return [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row[1])]
