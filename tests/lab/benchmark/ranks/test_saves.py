"""Saving and restoring a model in real processes."""

import pytest

from megatape.lab.benchmark.ranks.rank_processes import RankLayout
from megatape.lab.benchmark.ranks.saves import RESTORING, RestoreTimes, SaveTimes, report, restore_table, save_table


@pytest.mark.slow
# A busy machine needs this long.
@pytest.mark.timeout(1800)
def test_saves_and_restores() -> None:
    """Ranks in any layout read no more than their share."""
    shown: list[str] = []
    report(shown.append, 1)
    assert shown[0].startswith("Weights and optimizer state of 0.70 GB")
    restored = shown[3].splitlines()[2:]
    assert len(restored) == len(RESTORING)
    assert {row.split("|")[-2].strip() for row in restored} == {"1.000"}


def test_the_slowest_rank_is_shown() -> None:
    fast = SaveTimes(10**6, copy=0.5, foreground=1.0, stall=0.25, background=3.0)
    slow = SaveTimes(10**6, copy=0.25, foreground=4.0, stall=0.5, background=2.0)
    rows = save_table([fast, slow]).splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("|")[2:-1]] for row in rows]
    assert cells == [["0.50", "1.0", ""], ["0.50", "1.0", ""], ["3.00", "6.0", ""], ["4.00", "8.0", "0"]]

    times = [RestoreTimes(1.0, 3 * 10**6, 10**6), RestoreTimes(2.0, 10**6, 10**6)]
    (row,) = restore_table({RankLayout(3, 4, 2): times}).splitlines()[2:]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["3", "2 x 2", "2.00", "3", "1", "3.000"]
