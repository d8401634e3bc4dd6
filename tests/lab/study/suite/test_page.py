"""The page of a suite without a browser: its tables, and the data of its charts."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from markupsafe import escape

from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import ModelConfig
from megatape.lab.study.suite.design import Design
from megatape.lab.study.suite.page import MAX_POINTS, write_page
from megatape.lab.study.suite.plan import Plan, parse_plan
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.sizes import SIZES
from megatape.lab.study.suite.tables.suite_results import SuiteResults
from megatape.registry import SYNTHETIC_TASKS, Entry
from tests.helpers.lab.suite_records import SECONDS, make_records, make_suite
from tests.helpers.runs.report_folders import HOSTILE


class WrittenPage(NamedTuple):
    """Page of a suite.

    Attributes:
        text: HTML, without places where a name may be broken.
        content: Data of its charts.
    """

    text: str
    content: dict[str, Any]


def write(suite: SuiteResults, folder: Path) -> WrittenPage:
    """Write the page of a suite, the only file in a folder."""
    page = folder / "suite.html"
    write_page(suite, page)
    assert list(folder.iterdir()) == [page]
    text = page.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data
    return WrittenPage(text.replace("<wbr>", ""), json.loads(data[1], parse_constant=pytest.fail))


def write_copy_suite(records: list[Record], folder: Path, not_run: tuple[str, ...] = ()) -> WrittenPage:
    """Write the page of these records in a suite of one task."""
    plan = parse_plan("tiny", "copy", "rope", 1, None)
    return write(make_suite(records, plan, not_run=not_run), folder)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a task, which is HTML."""
    monkeypatch.setitem(SYNTHETIC_TASKS, HOSTILE, Entry("tests.lab.study.suite.test_page:Hostile", "a task"))
    return HOSTILE


class Hostile:
    """Part of a task that the page reads."""

    axis = f"distance {HOSTILE}"


@pytest.fixture
def hostile_records(task: str) -> list[Record]:
    return make_records([task], ["rope", "tape", HOSTILE], seeds=3)


def test_names_that_are_html_are_text(hostile_records: list[Record], tmp_path: Path) -> None:
    text, _ = write_copy_suite(hostile_records, tmp_path, (f"all of {HOSTILE}",))

    assert "<img" not in text
    assert "&lt;img src=x" in text
    assert "\\u003cimg src=x" in text
    assert "all of &lt;img" in text


def test_tables_equal_those_in_markdown(hostile_records: list[Record], tmp_path: Path) -> None:
    text, _ = write_copy_suite(hostile_records, tmp_path)

    assert re.search(r'row">tape</th><td>[\d.]+ ± [\d.]+', text)
    assert "n/a" in text


def test_charts_have_a_curve_for_each_encoding(task: str, hostile_records: list[Record], tmp_path: Path) -> None:
    _, content = write_copy_suite(hostile_records, tmp_path)

    assert content["labels"] == ["rope", HOSTILE, "tape", "xpos"]
    assert [chart["title"] for chart in content["charts"]] == [f"{task}, test", f"{task}, long", f"{task}, sparse"]
    chart = content["charts"][1]
    assert [series["group"] for series in chart["series"]] == [0, 1, 2]
    assert chart["axis"] == Hostile.axis
    assert chart["last"] == 32
    percentages = []
    for record in hostile_records:
        if record.contender == "tape" and record.split == "long":
            percentages.append([100 * right / asked for _, right, asked in record.curve])
    tape = chart["series"][2]
    assert tape["x"] == [4, 8, 16, 32]
    assert tape["y"] == pytest.approx(np.mean(percentages, axis=0), rel=1e-5)
    assert tape["low"] == pytest.approx(np.min(percentages, axis=0), rel=1e-5)
    assert tape["high"] == pytest.approx(np.max(percentages, axis=0), rel=1e-5)


def test_page_without_records_replaces_an_earlier_one(hostile_records: list[Record], tmp_path: Path) -> None:
    write_copy_suite(hostile_records, tmp_path)

    text, content = write_copy_suite([], tmp_path, ("all",))

    assert content["charts"] == []
    assert "Nothing has been scored" in text


@pytest.fixture(scope="module")
def two_tasks() -> list[Record]:
    return make_records(["copy", "recall"])


@pytest.fixture(scope="module")
def plan() -> Plan:
    return parse_plan("tiny", "copy,recall", "rope,tape", 5, None)


def section(text: str, begin: str, end: str) -> str:
    return text[text.index(begin) : text.index(end)]


def test_matrix_of_differences(two_tasks: list[Record], plan: Plan, tmp_path: Path) -> None:
    """Each has its p-value and its interval, and those found are marked."""
    results = make_suite(two_tasks, replace(plan, test="welch"))
    text, _ = write(results, tmp_path)

    matrix = section(text, 'class="matrix"', 'id="curves"')
    num_significant = 0
    for key, difference in results.summary.differences.items():
        mark = ""
        if difference.significant:
            num_significant += 1
            mark = "▲" if difference.mean > 0 else "▼"
        elif difference.is_discovery:
            mark = "△" if difference.mean > 0 else "▽"
        assert difference.interval is not None
        low, high = difference.interval
        shown = f"{100 * difference.mean:+.1f} {mark}".strip()
        shown += f"<small>{100 * low:+.1f} to {100 * high:+.1f}</small>"
        title = f"p = {difference.p:.2g}, q = {difference.false_discovery_p:.2g}, {difference.seeds} seeds"
        assert re.search(rf'<td title="{title}"[^>]*>\s*{re.escape(shown)}\s*</td>', matrix), key
    assert num_significant > 0
    assert matrix.count("▲") + matrix.count("▼") == num_significant
    assert matrix.count('title="not run or not applicable"') == 2, "xpos on `long`"


def test_the_page_of_a_test_without_intervals(two_tasks: list[Record], plan: Plan, tmp_path: Path) -> None:
    text, _ = write(make_suite(two_tasks, plan), tmp_path)

    assert "the exact permutation test over the seeds that both have" in text
    assert "The interval below" not in text
    assert re.search(r"<small>q 0\.\d+</small>", section(text, 'class="matrix"', 'id="curves"'))


def test_the_page_names_its_design(two_tasks: list[Record], plan: Plan, tmp_path: Path) -> None:
    results = replace(make_suite(two_tasks, plan), design=Design("0123456789abcdef", 0))
    text, _ = write(results, tmp_path)

    assert "Design: design.json, 0123456789abcdef, written before the first run." in text


def test_settings_and_definitions(two_tasks: list[Record], plan: Plan, tmp_path: Path) -> None:
    """The page says what ran, on what, and what all words mean."""
    text, _ = write(make_suite(two_tasks, plan, command="megatape study suite <x>"), tmp_path)

    assert "megatape study suite &lt;x&gt;" in text
    assert "seeds: 5" in text
    assert "size tiny: 2 layers of width 64, 4 heads" in text
    assert "2.1M tokens per run · 500 samples of each test" in text
    assert "initial weights and order of samples" in text
    assert "write a string again" in text
    assert "Knows the answers." in text
    assert "rotary position encoding" in text
    descriptions = [split.differs for task in plan.tasks for split in task.tests.values() if split.differs]
    assert descriptions
    for description in descriptions:
        assert str(escape(description)) in text


class SuitePage(NamedTuple):
    """Page of a suite with a variant of tape.

    Attributes:
        folder: Folder of the suite, with a space in its name.
        text: HTML.
        cards: HTML of each encoding's card.
    """

    folder: Path
    text: str
    cards: dict[str, str]


@pytest.fixture(scope="module")
def page(two_tasks: list[Record], plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> SuitePage:
    variant = [
        record.model_copy(update={"contender": "rope:nope_every=2"}) for record in two_tasks if record.contender == "tape"
    ]
    seconds = SECONDS | {"rope": [60, 62, 100], "rope:nope_every=2": [93]}
    folder = tmp_path_factory.mktemp("suite") / "a folder"
    folder.mkdir()
    text, _ = write(make_suite([*two_tasks, *variant], plan, seconds), folder)
    cards = {}
    for card in text.split('<article class="card">\n<h3>')[1:]:
        name, _, _ = card.partition("<")
        cards[name.strip()] = card
    return SuitePage(folder, text, cards)


def test_cards_say_what_encodings_compute(page: SuitePage) -> None:
    assert list(page.cards) == ["rope", "alibi", "fire", "nope", "rope:nope_every=2", "tape", "xpos"]
    assert "e &lt;- e + g * (A e)" in page.cards["tape"]
    assert "c_i" not in page.cards["tape"]


def test_cards_say_what_encodings_cost(page: SuitePage, plan: Plan) -> None:
    """Time is that of the encoding's runs."""
    model = SIZES["tiny"].config(plan.tasks[0], "data", plan.tasks[0].vocab_size)["model"]
    parameters = count_parameters(ModelConfig(**model | {"encoding": "tape"}))

    assert f"<dd>{parameters.total:,} <small>" in page.cards["tape"]
    assert f"<dd>{parameters.position:,}</dd>" in page.cards["tape"]
    assert "<dd>62</dd>" in page.cards["rope"]
    assert "<dd>93 <small>1.50 × rope" in page.cards["rope:nope_every=2"]
    assert "<dd>60 <small>0.97 × rope" in page.cards["tape"]
    assert "1,280 <small>1.25 × rope" in page.cards["tape"]


def test_command_repeats_a_cell(page: SuitePage) -> None:
    command = "megatape study suite --size tiny --tasks recall --encodings tape --seeds 5 --rates 0.001 --output runs/cell\n"

    assert command in page.text


def test_failures_are_sorted_by_loss(page: SuitePage) -> None:
    failures = section(page.text, 'id="failures"', 'id="tasks"')

    rows = re.findall(r'row">(.*?)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>', failures)
    losses = [float(loss) for *_, loss in rows]
    assert losses == sorted(losses, reverse=True)
    assert rows[0][2] == "long"
    assert "tape" not in {row for row, *_ in rows[:4]}
    folder = escape(f"'{page.folder}'/recall")  # quoted for a shell
    assert f"<code>{folder}/fire/rate-0.001/seed-0</code>" in failures


def test_many_lengths_share_points(task: str, tmp_path: Path) -> None:
    """1000 distances, with few answers at long ones, share at most 20 points. Every answer counts, and each point has many."""
    keys = np.arange(1, 1001)
    asked = np.maximum(1, 100 - np.arange(1000) // 5)
    right = np.random.default_rng(0).binomial(asked, 0.5)
    curve = tuple(zip(keys.tolist(), right.tolist(), asked.tolist(), strict=True))
    template = make_records([task], ["rope"], seeds=1, limited=())[0]
    record = template.model_copy(update={"curve": curve})
    shorter = template.model_copy(update={"curve": curve[:300], "seed": 1})

    _, content = write_copy_suite([record, shorter], tmp_path)

    (series,) = content["charts"][0]["series"]
    assert 15 <= len(series["x"]) <= MAX_POINTS
    assert series["x"] == sorted(series["x"])
    assert series["x"][-1] > 450
    assert min(series["low"]) > 30
    assert max(series["high"]) < 70
