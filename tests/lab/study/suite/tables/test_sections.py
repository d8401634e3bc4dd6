"""Tables of records with known effects, and of incomplete records."""

import re
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from scipy import stats

from megatape.lab.study.suite.analysis.summary import Summary
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.tables.sections import summarize
from tests.helpers.lab.suite_records import EFFECTS, make_records

Keep = Callable[[Record], bool]


def parts(text: str) -> dict[str, str]:
    """Sections by their title."""
    titles = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(titles[::2], titles[1::2], strict=True))


def cells(text: str, row: str, column: str, table: int = 0) -> str:
    """A cell of a section's table."""
    rows = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)[table].splitlines()
    header, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]
    (found,) = (line for line in lines if line[0] == f"`{row}`")
    return found[header.index(column)]


@pytest.fixture(scope="module")
def text(records: list[Record]) -> str:
    return summarize(records, ["fire on sort: 3 seeds, no time"])


def test_known_effects_and_no_others(records: list[Record], text: str) -> None:
    """Of 28 comparisons of 5 seeds, exactly those with an effect are marked, and only their intervals exclude zero."""
    for task in ("copy", "parity"):
        for row in ("alibi", "fire", "nope", "tape", "xpos"):
            for split in ("test", "long", "sparse"):
                if (row, split) == ("xpos", "long"):
                    continue
                score, difference = (cells(parts(text)[task], row, split, table) for table in (0, 1))
                effect = EFFECTS.get((row, split), 0)
                mark = {-1: "▼", 0: "", 1: "▲"}[int(np.sign(effect))]
                assert all(re.search("[▲▼]?$", shown)[0] == mark for shown in (score, difference))
                assert ", p " in difference
                _, low, high = (float(number) for number in re.findall(r"[+-][\d.]+", difference)[:3])
                assert (low <= 0 <= high) == (not effect)
                assert ("**" in score + difference) is ("*" in score + difference) is False
    assert "28 comparisons" in text
    assert cells(parts(text)["Scores"], "nope", "copy").endswith(" ▼▼")
    assert text.endswith("* fire on sort: 3 seeds, no time")


def test_figures(records: list[Record], text: str) -> None:
    """Means, spreads, differences, seeds and rates match values computed from the records."""
    scores = {(r.row, r.split, r.seed): 100 * r.score for r in records if r.task == "copy" and r.score is not None}
    tape, rope = (np.array([scores[row, "long", seed] for seed in range(5)]) for row in ("tape", "rope"))
    copy = parts(text)["copy"]
    assert cells(copy, "tape", "long") == f"{tape.mean():.1f} ± {tape.std(ddof=1):.1f} ▲"
    assert cells(copy, "tape", "long", 1).startswith(f"+{(tape - rope).mean():.1f} (+")
    both = np.array([[scores["tape", split, seed] for split in ("long", "sparse")] for seed in range(5)]).mean(axis=1)
    assert cells(parts(text)["Scores"], "tape", "copy") == f"{both.mean():.1f} ± {both.std(ddof=1):.1f} ▲"
    assert cells(copy, "oracle", "long") == "100.0"
    assert cells(parts(text)["Learning rates"], "tape", "copy") == "0.001"
    low, high = (float(end) for end in re.findall(r"[+-][\d.]+", cells(copy, "alibi", "sparse", 1))[1:])
    differences = [scores["alibi", "sparse", seed] - scores["rope", "sparse", seed] for seed in range(5)]
    tested = 28 - 8  # the rest are significant
    expected = stats.t.interval(1 - 0.05 / tested, 4, np.mean(differences), stats.sem(differences))
    assert low <= expected[0] + 0.05
    assert high >= expected[1] - 0.05
    assert f"({100 * (1 - 0.05 / tested):.4g}% t interval)" in copy
    assert int(cells(copy, "tape", "long", 2)) <= 5 < int(cells(copy, "alibi", "test", 2))


def test_not_applicable_is_not_zero(text: str) -> None:
    copy = parts(text)["copy"]
    assert cells(copy, "xpos", "long") == "n/a"
    assert cells(copy, "xpos", "long", 1) == ""
    assert "* xpos on long: not applicable because 64 positions are more than 32" in copy
    assert "(1 of 2)" in cells(parts(text)["Scores"], "xpos", "copy")
    ranks = parts(text)["Ranks"]
    assert "* xpos is left out: not applicable to 2 splits" in ranks
    assert "`xpos`" not in ranks


def test_ranks() -> None:
    """If the encodings have the same order on all tasks, twelve tasks separate some of them, and two tasks none."""
    effects = {(row, split): -0.05 * place for place, row in enumerate("abcd") for split in ("test", "long", "sparse")}
    ranks = {}
    for tasks in (2, 12):
        found = make_records([f"t{number}" for number in range(tasks)], [*"abcd"], 2, effects, 0.001, limited=())
        ranks[tasks] = parts(summarize(found, []))["Ranks"]
        assert [cells(ranks[tasks], row, "mean rank") for row in "abcd"] == ["1.00", "2.00", "3.00", "4.00"]
    assert cells(ranks[12], "a", "differs significantly from") == "c, d"
    assert "finds differences" in ranks[12]
    assert cells(ranks[2], "a", "differs significantly from") == "none"
    assert "no significant difference" in ranks[2]
    assert "36 splits, 12 tasks)" in ranks[12]


def without(records: Iterable[Record], leave_out: Keep) -> dict[str, str]:
    """Return the tables without some records."""
    return parts(summarize([record for record in records if not leave_out(record)], []))


def test_seeds_in_common(records: list[Record]) -> None:
    """An encoding with missing seeds is compared on the seeds that both have, even if there is only one, or none."""
    records = [record for record in records if record.task == "copy"]
    lacking = {"tape": (0, 1), "fire": (0, 1, 2, 3), "rope": (4,)}
    found = without(records, lambda r: r.seed in lacking.get(r.row, ()))
    scores = {(r.row, r.seed): 100 * r.score for r in records if r.split == "long" and r.score is not None}
    mean = np.mean([scores["tape", seed] - scores["rope", seed] for seed in (2, 3)])
    assert float(cells(found["copy"], "tape", "long", 1).split()[0]) == pytest.approx(mean, abs=0.0501)
    assert "(3 of 5 seeds)" in cells(found["copy"], "tape", "long")
    assert "seeds)" not in cells(found["copy"], "alibi", "long")
    assert "`fire`" not in found["copy"].split("Difference from")[1]
    found = without(records, lambda r: r.seed not in (0, None))
    score = cells(found["copy"], "tape", "long")
    assert re.fullmatch(r"[\d.]+", score)
    assert "No difference could be tested" in found["Scores"]
    assert cells(found["copy"], "tape", "long", 1).endswith(", one seed")
    assert "Seeds that would" not in found["copy"]


def test_missing_results() -> None:
    records = make_records(["copy", "parity"], ["rope", "tape"], limited=())
    no_rope = without(records, lambda r: r.row == "rope")
    assert "No seed is in common with rope" in no_rope["copy"]
    assert "▲" not in no_rope["copy"]
    no_split = without(records, lambda r: (r.task, r.split, r.row) == ("copy", "long", "tape"))
    assert cells(no_split["copy"], "tape", "long") == "not run"
    assert cells(no_split["copy"], "tape", "long", 1) == ""
    assert "* copy, long is left out: not every encoding above has a score" in no_split["Ranks"]
    no_task = without(records, lambda r: (r.task, r.row) == ("copy", "tape"))
    assert cells(no_task["Scores"], "tape", "copy") == "not run"
    assert "3 splits, 1 task)" in no_task["Ranks"]
    baselines = without(records, lambda r: r.kind == "encoding")
    assert cells(baselines["copy"], "oracle", "long") == "100.0"
    assert "There are no ranks" in baselines["Ranks"]
    assert "Everything that was asked for was run" in baselines["Not run"]
    assert parts(summarize([], ["all"])).keys() == {"Scores", "Not run"}
    nothing = [r.model_copy(update={"score": None, "reason": "not applicable"}) for r in records if r.kind == "encoding"]
    assert cells(parts(summarize(nothing, []))["Scores"], "tape", "copy") == "n/a"


def test_seeds_that_learn_and_others_that_do_not(records: list[Record]) -> None:
    """Some seeds of an encoding learn the task and others do not, so the differences are tested by exact permutation."""
    learned = {"fire": [1, 0, 1, 1, 0], "tape": [1] * 5, "rope": [0] * 5}
    found = [
        r.model_copy(update={"score": learned[r.row][r.seed or 0]}) for r in records if r.task == "copy" and r.row in learned
    ]
    copy = parts(summarize(found, []))["copy"]
    # 2 / 252 and 1 / 6, times the six comparisons and the three that are left.
    assert cells(copy, "tape", "long", 1) == "+100.0, exact p 0.048 ▲"
    assert cells(copy, "tape", "long").endswith("▲")
    assert cells(copy, "fire", "long", 1) == "+60.0, exact p 0.5"
    assert cells(copy, "tape", "long", 2) == "at least 5"
    assert "* fire on long: seeds differ by 100 points, as if some had learned" in copy
    assert "* tape" not in copy
    assert "* rope" not in copy


def test_identical_scores(records: list[Record]) -> None:
    """If all scores are 100%, there is no difference, no order and no number of needed seeds."""
    equal = [r.model_copy(update={"score": 1.0, "reason": None, "asked": 1000}) for r in records if r.task == "copy"]
    found = Summary(equal).differences.values()
    assert {(one.mean, one.p, one.needed) for one in found} == {(0.0, 1.0, None)}
    assert all(one.interval is not None and one.interval[0] < 0 < one.interval[1] < 0.02 for one in found)
    text = summarize(equal, [])
    assert re.fullmatch(r"\+0.0 \(-\d.\d to \+\d.\d\), p 1", cells(parts(text)["copy"], "tape", "long", 1))
    assert "▲" not in parts(text)["copy"]
    assert "no significant difference (p = 1)" in text
    assert cells(parts(text)["copy"], "tape", "long", 2) == "more than 1,000"
