"""Names of sets and their metrics."""

import pytest

from megatape.lab.tasks.scrolls.sets import SETS, parse_set


@pytest.mark.parametrize("name", SETS)
def test_published_sets_have_their_metrics(name: str) -> None:
    parsed = parse_set(name)

    assert parsed.name == name
    assert parsed.metric == SETS[name]


def test_own_set_names_its_metric() -> None:
    parsed = parse_set("my_set=exact_match")

    assert parsed.name == "my_set"
    assert parsed.metric == "exact_match"


@pytest.mark.parametrize("text", ["my_set", "quality=f1", "my_set=em", "../a=f1", "..=f1", "=f1"])
def test_bad_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a set: .*choose one of qasper, contract_nli"):
        parse_set(text)
