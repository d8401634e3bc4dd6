"""Tables of records with known effects, and of incomplete records."""

import re
from collections.abc import Callable, Iterable
from itertools import product

import numpy as np
import pytest
from scipy import stats

from megatape.lab.study.suite.analysis.difference_tests import Welch
from megatape.lab.study.suite.analysis.summary import Summary
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.tables.sections import summarize
from tests.helpers.lab.suite_records import EFFECTS, SPLITS, make_records

Condition = Callable[[Record], bool]

# Numbers of a section's tables.
SCORES = 0
DIFFERENCES = 1
NEEDED_SEEDS = 2


def sections(text: str) -> dict[str, str]:
    """Return the sections of a summary by their title."""
    titles_and_bodies = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(titles_and_bodies[::2], titles_and_bodies[1::2], strict=True))


def cell(section: str, row: str, column: str, table: int = SCORES) -> str:
    """Return a cell of a section's table."""
    tables = re.findall(r"(?:^\|.*\n?)+", section, re.MULTILINE)
    lines = []
    for line in tables[table].splitlines():
        lines.append([text.strip() for text in line.strip("|").split("|")])
    header = lines[0]
    (cells,) = [line for line in lines[1:] if line[0] == f"`{row}`"]
    return cells[header.index(column)]


def signed_numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[+-][\d.]+", text)]


def summarize_without(records: Iterable[Record], is_left_out: Condition) -> dict[str, str]:
    """Return the sections for the other records."""
    return sections(summarize(Summary([record for record in records if not is_left_out(record)], Welch), []))


@pytest.fixture(scope="module")
def text(records: list[Record]) -> str:
    return summarize(Summary(records, Welch), ["fire on sort: 3 seeds, no time"])


@pytest.fixture(scope="module")
def copy_scores(records: list[Record]) -> dict[tuple[str, str, int | None], float]:
    """Percentages on `copy` by row, split and seed."""
    scores = {}
    for record in records:
        if record.task == "copy" and record.score is not None:
            scores[record.contender, record.split, record.seed] = 100 * record.score
    return scores


@pytest.mark.parametrize("task", ["copy", "parity"])
def test_known_effects_and_no_others_are_marked(text: str, task: str) -> None:
    """Among 28 comparisons of 5 seeds, exactly those with an effect are marked, and only their intervals exclude zero."""
    section = sections(text)[task]
    for row, split in product(("alibi", "fire", "nope", "tape", "xpos"), SPLITS):
        if (row, split) == ("xpos", "long"):
            continue
        effect = EFFECTS.get((row, split), 0)
        mark = {-1: "▼", 0: "", 1: "▲"}[int(np.sign(effect))]
        score = cell(section, row, split)
        difference = cell(section, row, split, DIFFERENCES)
        low, high = signed_numbers(difference)[1:3]
        contains_zero = low <= 0 <= high

        assert re.findall("[▲▼]?$", score)[0] == mark, score
        assert re.findall("[▲▼]?$", difference)[0] == mark, difference
        assert ", p " in difference
        assert contains_zero == (not effect), difference
        assert "*" not in score
        assert "*" not in difference


def test_differences_over_all_tasks(records: list[Record], text: str) -> None:
    """The section's cells are means and intervals in points, with two digits."""
    overall = Summary(records, Welch).overall
    section = sections(text)["Over all tasks"]

    assert set(overall) == {"alibi", "fire", "nope", "tape"}, "xpos has no score on one split"
    for contender, difference in overall.items():
        assert difference.interval is not None
        low, high = difference.interval
        assert cell(section, contender, "difference") == f"{100 * difference.mean:+.2f}"
        assert cell(section, contender, "95% interval") == f"{100 * low:+.2f} to {100 * high:+.2f}"
    assert "The interval is the 95% t interval over seeds" in section


def test_the_overall_interval_is_that_of_the_test(records: list[Record]) -> None:
    section = sections(summarize(Summary(records), []))["Over all tasks"]

    difference = Summary(records).overall["tape"]
    assert difference.interval is not None
    low, high = difference.interval
    assert cell(section, "tape", "95% interval") == f"{100 * low:+.2f} to {100 * high:+.2f}"
    assert "The interval is the 95% permutation interval over seeds" in section


def test_one_seed_has_no_interval_over_all_tasks(records: list[Record]) -> None:
    one_seed = summarize_without(records, lambda record: record.seed not in (0, None))

    assert cell(one_seed["Over all tasks"], "tape", "95% interval") == "1 seed: too few"


def test_without_a_common_seed_there_is_no_difference_over_all_tasks(records: list[Record]) -> None:
    no_rope = summarize_without(records, lambda record: record.contender == "rope")

    assert "No encoding shares a seed with rope on all tasks." in no_rope["Over all tasks"]


def test_summary_counts_false_discovery_findings(records: list[Record], text: str) -> None:
    summary = Summary(records, Welch)

    assert 8 <= summary.discoveries <= summary.comparisons, "at least those that Holm's method finds"
    count = f"{summary.discoveries} of the {summary.comparisons} comparisons differ in all"
    assert f"at a false discovery rate of 5% (Benjamini and Hochberg), at which {count}." in text


def test_summary_counts_comparisons_and_lists_what_was_not_run(text: str) -> None:
    assert "28 comparisons" in text
    assert cell(sections(text)["Scores"], "nope", "copy").endswith(" ▼▼")
    assert text.endswith("* fire on sort: 3 seeds, no time")


def test_scores_are_means_and_spreads(text: str, copy_scores: dict[tuple[str, str, int | None], float]) -> None:
    tape = np.array([copy_scores["tape", "long", seed] for seed in range(5)])
    rope = np.array([copy_scores["rope", "long", seed] for seed in range(5)])
    sparse = np.array([copy_scores["tape", "sparse", seed] for seed in range(5)])
    both_splits = (tape + sparse) / 2

    copy = sections(text)["copy"]
    assert cell(copy, "tape", "long") == f"{tape.mean():.1f} ± {tape.std(ddof=1):.1f} ▲"
    assert cell(copy, "tape", "long", DIFFERENCES).startswith(f"+{(tape - rope).mean():.1f} (+")
    assert cell(copy, "oracle", "long") == "100.0"
    scores = sections(text)["Scores"]
    assert cell(scores, "tape", "copy") == f"{both_splits.mean():.1f} ± {both_splits.std(ddof=1):.1f} ▲"
    assert cell(sections(text)["Learning rates"], "tape", "copy") == "0.001"


def test_intervals_have_the_confidence_of_the_last_tested(
    text: str, copy_scores: dict[tuple[str, str, int | None], float]
) -> None:
    """Eight of 28 comparisons are significant."""
    alibi = [copy_scores["alibi", "sparse", seed] for seed in range(5)]
    rope = [copy_scores["rope", "sparse", seed] for seed in range(5)]
    confidence = 1 - 0.05 / (28 - 8)
    expected = stats.ttest_ind(alibi, rope, equal_var=False).confidence_interval(confidence)

    copy = sections(text)["copy"]
    low, high = signed_numbers(cell(copy, "alibi", "sparse", DIFFERENCES))[1:]
    assert low == pytest.approx(expected.low, abs=0.051)
    assert high == pytest.approx(expected.high, abs=0.051)
    assert f"({100 * confidence:.4g}% t interval)" in copy


def test_significant_differences_need_no_more_seeds(text: str) -> None:
    copy = sections(text)["copy"]

    assert int(cell(copy, "tape", "long", NEEDED_SEEDS)) <= 5
    assert int(cell(copy, "alibi", "test", NEEDED_SEEDS)) > 5


def test_unsupported_splits_have_no_score(text: str) -> None:
    copy = sections(text)["copy"]
    assert cell(copy, "xpos", "long") == "n/a"
    assert cell(copy, "xpos", "long", DIFFERENCES) == ""
    assert "* xpos on long: not applicable because 64 positions are more than 32" in copy
    assert "(1 of 2)" in cell(sections(text)["Scores"], "xpos", "copy")


def test_encodings_that_cannot_do_a_split_are_not_ranked(text: str) -> None:
    ranks = sections(text)["Ranks"]

    assert "* xpos is left out: not applicable to 2 splits" in ranks
    assert "`xpos`" not in ranks


def _ranks_of_four(num_tasks: int) -> str:
    """Return the ranks of encodings a to d, which have this order on all tasks."""
    rows = ["a", "b", "c", "d"]
    effects = {}
    for index, row in enumerate(rows):
        for split in SPLITS:
            effects[row, split] = -0.05 * index
    tasks = [f"t{number}" for number in range(num_tasks)]
    records = make_records(tasks, rows, 2, effects, 0.001, limited=())
    return sections(summarize(Summary(records, Welch), []))["Ranks"]


@pytest.mark.parametrize("num_tasks", [2, 12])
def test_mean_ranks(num_tasks: int) -> None:
    ranks = _ranks_of_four(num_tasks)

    mean_ranks = [cell(ranks, row, "mean rank") for row in ("a", "b", "c", "d")]
    assert mean_ranks == ["1.00", "2.00", "3.00", "4.00"]


def test_twelve_tasks_separate_encodings() -> None:
    ranks = _ranks_of_four(12)

    assert "over 12 tasks" in ranks
    assert "(24 splits in all)" in ranks
    assert "finds differences" in ranks
    assert cell(ranks, "a", "differs significantly from") == "c, d"


def test_two_tasks_do_not_separate_encodings() -> None:
    ranks = _ranks_of_four(2)

    # All 24 orders in the second task are equally likely, and only one is as extreme.
    assert "(p = 0.04" in ranks
    assert cell(ranks, "a", "differs significantly from") == "none"


def test_differences_are_of_common_seeds(records: list[Record], copy_scores: dict[tuple[str, str, int | None], float]) -> None:
    """Only seeds that both encodings have are compared. `fire` has none in common with the reference."""
    missing_seeds = {"tape": (0, 1), "fire": (0, 1, 2, 3), "rope": (4,)}
    common_differences = [copy_scores["tape", "long", seed] - copy_scores["rope", "long", seed] for seed in (2, 3)]

    copy = summarize_without(
        records, lambda record: record.task != "copy" or record.seed in missing_seeds.get(record.contender, ())
    )["copy"]

    difference = cell(copy, "tape", "long", DIFFERENCES)
    assert float(difference.split()[0]) == pytest.approx(np.mean(common_differences), abs=0.0501)
    assert "(3 of 5 seeds)" in cell(copy, "tape", "long")
    assert "seeds)" not in cell(copy, "alibi", "long")
    _, _, differences = copy.partition("Difference from")
    assert differences
    assert "`fire`" not in differences


def test_one_seed_has_no_test(records: list[Record]) -> None:
    without_others = summarize_without(records, lambda record: record.task != "copy" or record.seed not in (0, None))

    copy = without_others["copy"]
    assert re.fullmatch(r"[\d.]+", cell(copy, "tape", "long"))
    assert "No difference could be tested" in without_others["Scores"]
    assert cell(copy, "tape", "long", DIFFERENCES).endswith(", one seed")
    assert "Seeds that would" not in copy


@pytest.fixture(scope="module")
def two_encodings() -> list[Record]:
    return make_records(["copy", "parity"], ["rope", "tape"], limited=())


def test_missing_reference(two_encodings: list[Record]) -> None:
    copy = summarize_without(two_encodings, lambda record: record.contender == "rope")["copy"]

    assert "No seed is in common with rope" in copy
    assert "▲" not in copy


def test_missing_split(two_encodings: list[Record]) -> None:
    no_split = summarize_without(
        two_encodings, lambda record: (record.task, record.split, record.contender) == ("copy", "long", "tape")
    )

    assert cell(no_split["copy"], "tape", "long") == "not run"
    assert cell(no_split["copy"], "tape", "long", DIFFERENCES) == ""
    assert "* copy, long is left out: not every encoding above has a score" in no_split["Ranks"]


def test_missing_task(two_encodings: list[Record]) -> None:
    no_task = summarize_without(two_encodings, lambda record: (record.task, record.contender) == ("copy", "tape"))

    assert cell(no_task["Scores"], "tape", "copy") == "not run"
    assert "over 1 task;" in no_task["Ranks"]
    assert "no significant difference" in no_task["Ranks"]


def test_baselines_alone(two_encodings: list[Record]) -> None:
    baselines = summarize_without(two_encodings, lambda record: record.kind == "encoding")

    assert cell(baselines["copy"], "oracle", "long") == "100.0"
    assert "There are no ranks" in baselines["Ranks"]
    assert "All requested parts were run" in baselines["Not run"]


def test_no_records() -> None:
    assert sections(summarize(Summary([]), ["all"])).keys() == {"Scores", "Not run"}


def test_splits_unsupported_by_all_encodings(two_encodings: list[Record]) -> None:
    records = []
    for record in two_encodings:
        if record.kind == "encoding":
            records.append(record.model_copy(update={"score": None, "reason": "not applicable"}))

    scores = sections(summarize(Summary(records, Welch), []))["Scores"]

    assert cell(scores, "tape", "copy") == "n/a"


def test_seeds_that_learn_and_others_that_do_not(records: list[Record]) -> None:
    """The default test is exact if some seeds of an encoding learn the task and others do not."""
    learned = {"fire": [1, 0, 1, 1, 0], "tape": [1, 1, 1, 1, 1], "rope": [0, 0, 0, 0, 0]}
    bimodal_records = []
    for record in records:
        if record.task == "copy" and record.contender in learned:
            score = learned[record.contender][record.seed or 0]
            bimodal_records.append(record.model_copy(update={"score": score}))

    text = summarize(Summary(bimodal_records), [])
    copy = sections(text)["copy"]

    # The p-values are 2 / 252 and 1 / 6, times the six comparisons and the remaining three.
    assert cell(copy, "tape", "long", DIFFERENCES) == "+100.0, p 0.048, q 0.016 ▲"
    assert cell(copy, "tape", "long").endswith("▲")
    assert cell(copy, "fire", "long", DIFFERENCES).startswith("+60.0, p 0.5, q 0.")
    assert "Seeds that would" not in copy
    assert "no difference between fewer than 5 seeds is significant" in sections(text)["Scores"]
    assert "* fire on long: seeds differ by 100 points, as if some had learned" in copy
    assert "* tape" not in copy
    assert "* rope" not in copy


@pytest.fixture(scope="module")
def perfect_records(records: list[Record]) -> list[Record]:
    """Records of `copy` with a score of 100% each."""
    perfect = {"score": 1.0, "reason": None, "asked": 1000}
    return [record.model_copy(update=perfect) for record in records if record.task == "copy"]


def test_differences_of_identical_scores(perfect_records: list[Record]) -> None:
    differences = Summary(perfect_records, Welch).differences

    assert differences
    for difference in differences.values():
        assert difference.mean == 0
        assert difference.p == 1
        assert difference.needed is None
        assert difference.interval is not None
        low, high = difference.interval
        assert low < 0
        assert 0 < high < 0.02


def test_tables_of_identical_scores(perfect_records: list[Record]) -> None:
    """If all scores are 100%, there is no difference, no order and no number of needed seeds."""
    text = summarize(Summary(perfect_records, Welch), [])

    copy = sections(text)["copy"]
    assert re.fullmatch(r"\+0.0 \(-\d.\d to \+\d.\d\), p 1, q 1", cell(copy, "tape", "long", DIFFERENCES))
    assert "▲" not in copy
    assert "no significant difference (p = 1)" in text
    assert cell(copy, "tape", "long", NEEDED_SEEDS) == "more than 1,000"
