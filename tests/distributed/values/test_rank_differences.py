"""Differences between ranks, in words."""

import pytest

from megatape.distributed.values.rank_differences import describe_ranks, differing_values, find_disagreement

HOSTS = ["n0", "n1", "n0"]


def test_equal_ranks_agree() -> None:
    assert find_disagreement(HOSTS, [None] * 3, [{"steps": 4}] * 3) is None


def test_a_fault_of_all_ranks_names_none() -> None:
    assert find_disagreement(HOSTS, ["no data"] * 3, [{}] * 3) == "no data"


def test_faults_and_differences_name_their_ranks() -> None:
    reason = find_disagreement(HOSTS, [None, "no data", None], [{"steps": 4}, {"steps": 7}, {"steps": 4}])
    assert reason is not None
    assert reason.startswith(
        "the ranks cannot train together: rank 1 (n1): no data; steps is 4 on ranks 0, 2 (n0), 7 on rank 1"
    )


def test_ranks_without_a_value_are_not_compared() -> None:
    assert differing_values(HOSTS, [{"steps": 4}, {}, {"steps": 4}]) == {}
    assert differing_values(HOSTS, [{"steps": 4}, {}, {"steps": None}]) == {"steps": "4 on rank 0 (n0), null on rank 2 (n0)"}


@pytest.mark.parametrize(
    ("ranks", "text"), [([1], "rank 1 (n1)"), ([0, 2], "ranks 0, 2 (n0)"), ([0, 1], "ranks 0-1 (n0, ...)")]
)
def test_names_of_ranks(ranks: list[int], text: str) -> None:
    assert describe_ranks(ranks, HOSTS) == text
