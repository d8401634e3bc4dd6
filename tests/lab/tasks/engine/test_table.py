"""Table comparing models on one task."""

from megatape.lab.tasks.engine.result import Measure
from megatape.lab.tasks.engine.table import table
from tests.helpers.checks.cells import cells


def test_rows_of_models_and_of_the_paper() -> None:
    """Intervals replace errors, missing measures are empty, and the paper has only rows with measures of the models."""
    rows = {
        "tape": [Measure("loss", 2.5, 0.25, 10), Measure("right (%)", 50.0, 5.0, 10, (40.0, 60.0))],
        "rope": [Measure("loss", 3.0, None, 10)],
    }
    paper = {"TAPE": {"loss": 2.25, "other": 1.0}, "another task": {"other": 1.0}}

    header, _, *lines = table(rows, paper).splitlines()

    assert cells(header) == ["model", "loss", "right (%)"]
    assert [cells(line) for line in lines] == [
        ["tape", "2.5 ± 0.25", "50 (40 to 60)"],
        ["rope", "3", ""],
        ["paper: TAPE", "2.25", ""],
    ]
