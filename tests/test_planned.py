"""Tables of docs/results/planned.md equal those written by docs/planned.py."""

import runpy
from typing import Any

import pytest

from tests.helpers.checks.slow import slow_but
from tests.helpers.processes.workers import ROOT

PLANNED: dict[str, Any] = runpy.run_path(str(ROOT / "docs/planned.py"))
PAGE = (ROOT / "docs/results/planned.md").read_text()


@pytest.mark.parametrize("table", ["ladder", "stages"])
@pytest.mark.parametrize("size", slow_but(["155m", "7b"], PLANNED["LADDER"]))
def test_the_ladder_is_up_to_date(table: str, size: str) -> None:
    row = PLANNED[f"{table}_row"](f"tape_{size}")
    assert f"| {' | '.join(row)} |" in PLANNED["table_of"](PAGE, table).splitlines(), "run: python docs/planned.py"


@pytest.mark.slow
@pytest.mark.parametrize("table", ["speeds", "long samples", "checkpointing", "longest", "longest with offloading"])
def test_table_is_up_to_date(table: str) -> None:
    assert PLANNED["table_of"](PAGE, table) == PLANNED["TABLES"][table](), "run: python docs/planned.py"
