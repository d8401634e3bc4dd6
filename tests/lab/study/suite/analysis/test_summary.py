"""Summary of records with known effects: differences, their tests and their intervals."""

from functools import cache

import numpy as np
import pytest
from scipy import stats

from megatape.lab.study.suite.analysis import hypothesis_tests
from megatape.lab.study.suite.analysis.hypothesis_tests import seeds_needed
from megatape.lab.study.suite.analysis.score_table import ALL_OR_NOTHING
from megatape.lab.study.suite.analysis.summary import Summary
from megatape.lab.study.suite.scores.record import Record
from tests.helpers.lab.suite_records import make_records


def test_all_comparisons_are_counted(records: list[Record]) -> None:
    """The smallest of 28 p-values is 28 times the uncorrected one, and needed seeds are for that level."""
    summary = Summary(records)
    least = min(summary.differences.values(), key=lambda one: one.p or 0)
    assert least.spread is not None
    assert least.p is not None
    alone = 2 * stats.t.sf(abs(least.mean) / (least.spread / np.sqrt(5)), 4)
    assert least.p == pytest.approx(28 * alone)
    assert least.p < 1e-4
    for one in summary.differences.values():
        assert one.spread is not None
        assert one.needed == seeds_needed(one.mean, one.spread, 0.05 / 28)
    assert any(one.needed != seeds_needed(one.mean, one.spread or 1, 0.05) for one in summary.differences.values())


@pytest.mark.slow
def test_false_findings_where_seeds_learn_or_not(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal encodings on tasks that a seed learns with an unknown chance, at most 5% of tables have a mark.

    The paired t-test alone has one in every third table of three seeds."""
    template = records[0]
    generator = np.random.default_rng(0)
    trials = 150
    exact_p = hypothesis_tests.exact_p
    by_count = cache(lambda seeds, a, b: exact_p(np.arange(seeds) < a, np.arange(seeds) < b))
    monkeypatch.setattr(hypothesis_tests, "exact_p", lambda a, b: by_count(len(a), int(a.sum()), int(b.sum())))
    # Computing the number of seeds needed takes the most time, and decides nothing.
    monkeypatch.setattr(hypothesis_tests, "seeds_needed", lambda *_: None)

    def marked(seeds: int, all_or_nothing_spread: float = ALL_OR_NOTHING) -> bool:
        found = []
        for task in ("copy", "parity", "sort"):
            chance = generator.uniform()
            for row in ("rope", *"abcdefgh"):
                for seed, learned in enumerate((generator.uniform(size=seeds) < chance).tolist()):
                    place = {"task": task, "row": row, "seed": seed, "split": "test", "kind": "encoding"}
                    found.append(template.model_copy(update=place | {"score": float(learned), "asked": 100, "reason": None}))
        differences = Summary(found, all_or_nothing_spread).differences
        return any(one.significant for one in differences.values())

    without_exact_tests = [marked(3, all_or_nothing_spread=2) for _ in range(trials)]
    assert np.mean(without_exact_tests) > 0.2
    for seeds in (3, 8):
        rate = np.mean([marked(seeds) for _ in range(trials)])
        assert rate <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / trials)


def test_intervals_do_not_contradict_the_marks() -> None:
    """Even with few seeds, and if differences pass only the later levels of Holm's method."""
    for number in range(20):
        effects = {(row, "long"): 0.015 * place for place, row in enumerate("abcdefgh")}
        summary = Summary(make_records([f"t{number}"], ["rope", *"abcdefgh"], 3 + number % 4, effects, 0.01, limited=()))
        for one in summary.differences.values():
            assert one.interval is not None
            assert (one.interval[0] <= 0 <= one.interval[1]) == (not one.significant)
