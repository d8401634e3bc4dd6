"""The page of a suite without a browser: its tables, and the data of its charts."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from megatape.accounting.parameters import count_parameters
from megatape.config import ModelConfig
from megatape.lab.report.suite_page import MAX_POINTS, write_page
from megatape.lab.study.suite.analysis.summary import Summary
from megatape.lab.study.suite.plan import parse_plan
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.sizes import SIZES
from megatape.registry import SYNTHETIC_TASKS, Entry
from tests.helpers.lab.suite_records import SECONDS, make_records, make_suite
from tests.helpers.runs.report_folders import HOSTILE


def written(records: list[Record], path: Path, not_run: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """The page, and the data of its charts."""
    plan = parse_plan("tiny", "copy", "rope", 1, None)
    write_page(make_suite(records, plan, not_run=not_run), path / "suite.html")
    assert [one.name for one in path.iterdir()] == ["suite.html"]
    text = (path / "suite.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    text = text.replace("<wbr>", "")  # where a name may be broken
    return text, json.loads(found[1], parse_constant=pytest.fail)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a task, which is HTML."""
    monkeypatch.setitem(SYNTHETIC_TASKS, HOSTILE, Entry("tests.lab.report.test_suite_page:Hostile", "a task"))
    return HOSTILE


class Hostile:
    """The part of a task that the page reads."""

    axis = f"distance {HOSTILE}"


def test_page(task: str, tmp_path: Path) -> None:
    """Tables as in Markdown, a curve for each encoding, names that are HTML as text. Writing again replaces the page."""
    records = make_records([task], ["rope", "tape", HOSTILE], seeds=3)
    text, content = written(records, tmp_path, (f"all of {HOSTILE}",))
    assert "<img" not in text and "&lt;img src=x" in text and "\\u003cimg src=x" in text
    assert re.search(r'row">tape</th><td>[\d.]+ ± [\d.]+', text) and "n/a" in text and "all of &lt;img" in text
    assert content["labels"] == ["rope", HOSTILE, "tape", "xpos"]
    assert [chart["title"] for chart in content["charts"]] == [f"{task}, {split}" for split in ("test", "long", "sparse")]
    chart = content["charts"][1]
    assert [series["group"] for series in chart["series"]] == [0, 1, 2]
    assert chart["axis"] == Hostile.axis and chart["last"] == 32
    shares = np.array(
        [[100 * right / asked for _, right, asked in r.curve] for r in records if (r.row, r.split) == ("tape", "long")]
    )
    expected = {"x": [4, 8, 16, 32], "y": shares.mean(0), "low": shares.min(0), "high": shares.max(0)}
    for name, values in expected.items():
        assert chart["series"][2][name] == pytest.approx(list(values), rel=1e-5), name

    text, content = written([], tmp_path, ("all",))
    assert content["charts"] == [] and "Nothing has been scored" in text


def test_matrix_and_definitions(tmp_path: Path) -> None:
    """Differences with their p, of which only the significant ones are marked; what ran, on what, and what all words mean."""
    records = make_records(["copy", "recall"])
    plan = parse_plan("tiny", "copy,recall", "rope,tape", 5, None)
    write_page(make_suite(records, plan, command="megatape study suite <x>"), tmp_path / "suite.html")
    text = (tmp_path / "suite.html").read_text().replace("<wbr>", "")
    summary = Summary(records)
    matrix = text[text.index('class="matrix"') : text.index('id="curves"')]
    for (task, split, row), one in summary.differences.items():
        mark = ("▲" if one.mean > 0 else "▼") if one.significant else ""
        assert one.interval is not None
        shown = f"{100 * one.mean:+.1f} {mark}".strip() + "<small>{:+.1f} to {:+.1f}</small>".format(
            *np.multiply(one.interval, 100)
        )
        cell = rf'<td title="p = {one.p:.2g}, {one.seeds} seeds"[^>]*>\s*{re.escape(shown)}\s*</td>'
        assert re.search(cell, matrix), (task, split, row)
    assert matrix.count("▲") + matrix.count("▼") == sum(one.significant for one in summary.differences.values()) > 0
    assert matrix.count('title="not run or not applicable"') == 2  # xpos on `long`
    assert "megatape study suite &lt;x&gt;" in text and "seeds: 5" in text
    assert "size tiny: 2 layers of width 64, 4 heads" in text
    assert "2.1M tokens a run · 500 samples of each test" in text and "initial weights and order of samples" in text
    assert "write a string again" in text and "Knows the answers." in text and "rotary position encoding" in text
    differs = [split.differs for task in plan.tasks for split in task.tests.values() if split.differs]
    assert differs and all(str(escape(each)) in text for each in differs)


def test_cards_commands_and_failures(tmp_path: Path) -> None:
    """What an encoding computes and costs, of which time is that of its runs; how to repeat a cell, and where models fail."""
    records = make_records(["copy", "recall"])
    plan = parse_plan("tiny", "copy,recall", "rope,tape", 5, None)
    records += [record.model_copy(update={"row": "tape:nope_every=2"}) for record in records if record.row == "tape"]
    seconds = SECONDS | {"rope": [60, 62, 100], "tape:nope_every=2": [93]}
    folder = tmp_path / "a folder"
    folder.mkdir()
    write_page(make_suite(records, plan, seconds), folder / "suite.html")
    text = (folder / "suite.html").read_text().replace("<wbr>", "")
    cards = {card.split("<", 1)[0].strip(): card for card in text.split('<article class="card">\n<h3>')[1:]}
    assert [*cards] == ["rope", "alibi", "fire", "nope", "tape", "tape:nope_every=2", "xpos"]
    assert "e &lt;- e + g * (A e)" in cards["tape"] and "c_i" not in cards["tape"]
    model = SIZES["tiny"].config(plan.tasks[0], "data", plan.tasks[0].vocab_size)["model"]
    parameters = count_parameters(ModelConfig(**model | {"encoding": "tape"}))
    assert f"<dd>{parameters.total:,} <small>" in cards["tape"] and f"<dd>{parameters.position:,}</dd>" in cards["tape"]
    assert "<dd>62</dd>" in cards["rope"] and "<dd>93 <small>1.50 × rope" in cards["tape:nope_every=2"]
    assert "<dd>60 <small>0.97 × rope" in cards["tape"] and "1,280 <small>1.25 × rope" in cards["tape"]
    assert "megatape study suite --size tiny --tasks recall --encodings tape --seeds 5 --rates 0.001 --out runs/cell\n" in text
    failures = text[text.index('id="failures"') : text.index('id="tasks"')]
    rows = re.findall(r'row">(.*?)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>', failures)
    losses = [float(loss) for *_, loss in rows]
    assert losses == sorted(losses, reverse=True) and rows[0][2] == "long" and "tape" not in {row for row, *_ in rows[:4]}
    out = escape(f"'{folder}'/recall")  # as a shell takes it
    assert f"<code>{out}/fire/rate-0.001/seed-0</code>" in failures


def test_many_lengths(task: str, tmp_path: Path) -> None:
    """Answers by 1000 distances, few at the long ones: every answer is in one of at most 20 points, none of which is a few."""
    keys = np.arange(1, 1001)
    asked = np.maximum(1, 100 - np.arange(1000) // 5)
    right = np.random.default_rng(0).binomial(asked, 0.5)
    curve = tuple(zip(keys.tolist(), right.tolist(), asked.tolist(), strict=True))
    record = make_records([task], ["rope"], seeds=1, limited=())[0].model_copy(update={"curve": curve})
    shorter = record.model_copy(update={"seed": 1, "curve": curve[:300]})
    _, content = written([record, shorter], tmp_path)
    (series,) = content["charts"][0]["series"]
    assert 15 <= len(series["x"]) <= MAX_POINTS and series["x"] == sorted(series["x"]) and series["x"][-1] > 450
    assert 30 < min(series["low"]) <= max(series["high"]) < 70
