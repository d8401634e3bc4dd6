"""Covering arrays cover."""

from itertools import combinations

import pytest

from tests.helpers.checks.covering import covering_array, full_product

FACTORS = {"a": ("0", "1", "2", "3"), "b": ("0", "1"), "c": ("0", "1", "2"), "d": ("0", "1", "2", "3", "4")}


@pytest.mark.parametrize(("strength", "most"), [(1, 5), (2, 22), (3, 70), (4, 120)])
def test_all_values_meet(strength: int, most: int) -> None:
    """No layout would train a missing pair."""
    rows = covering_array(FACTORS, strength)
    for names in combinations(FACTORS, strength):
        met = {tuple(row[name] for name in names) for row in rows}
        assert met == {tuple(one.values()) for one in full_product({name: FACTORS[name] for name in names})}
    assert len(rows) <= most
