"""Ranks of encodings over all tasks."""

from megatape.lab.study.suite.analysis.ranks import rank_encodings
from megatape.lab.study.suite.analysis.score_table import ScoreTable
from tests.helpers.lab.suite_records import make_records


def test_encodings_are_ranked_by_their_mean_over_splits() -> None:
    """tape is worse on the first split, and better on average."""
    effects = {("tape", "long"): -0.05, ("tape", "sparse"): 0.1}
    records = make_records(["copy", "parity", "sort"], ["rope", "tape"], 2, effects, 0.001, limited=())

    ranks = rank_encodings(ScoreTable(records))

    assert ranks is not None
    assert ranks.mean_ranks == {"tape": 1.0, "rope": 2.0}


def test_the_split_drawn_as_in_training_does_not_count() -> None:
    effects = {("tape", "test"): -0.5, ("tape", "long"): 0.1}
    records = make_records(["copy", "parity", "sort"], ["rope", "tape"], 2, effects, 0.001, limited=())

    ranks = rank_encodings(ScoreTable(records))

    assert ranks is not None
    assert ranks.mean_ranks == {"tape": 1.0, "rope": 2.0}


def test_without_another_split_the_one_drawn_as_in_training_counts() -> None:
    records = make_records(["copy", "parity"], ["rope", "tape"], 2, {("tape", "test"): -0.5}, 0.001, limited=())

    ranks = rank_encodings(ScoreTable([record for record in records if record.split == "test"]))

    assert ranks is not None
    assert ranks.mean_ranks == {"rope": 1.0, "tape": 2.0}
