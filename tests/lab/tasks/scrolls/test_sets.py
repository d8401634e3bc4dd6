"""Names of sets and their metrics."""

import pytest

from megatape.lab.tasks.scrolls.sets import SETS, parse_set


def test_names_of_sets() -> None:
    assert [parse_set(name) for name in SETS] == list(SETS.items())
    mine = parse_set("my_set=exact_match")
    assert (mine.name, mine.metric) == ("my_set", "exact_match")
    for wrong in ("my_set", "quality=f1", "my_set=em", "../a=f1", "..=f1", "=f1"):
        with pytest.raises(ValueError, match="is no set: .*choose one of qasper, contract_nli"):
            parse_set(wrong)
