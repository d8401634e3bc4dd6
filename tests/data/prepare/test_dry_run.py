"""A dry run decides as the preparation does."""

import json
import re
from pathlib import Path

import pytest

from megatape.commands.cli.main import main
from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.dry_run import dry_run
from megatape.data.prepare.rule_costs import Projection, RuleCosts
from megatape.data.sources.source import Source


def test_a_rule_sees_the_fields_of_records(tmp_path: Path) -> None:
    """Lacking the field, the rule dropped every document in a dry run."""
    path = tmp_path / "a.jsonl"
    records = [{"text": "first text", "license": "mit"}, {"text": "second text", "license": "gpl-3.0"}]
    path.write_text("\n".join(map(json.dumps, records)))
    cleaning = Cleaning(parse_rules(["license:allow=mit"]))
    source = Source("jsonl", (str(path),), fields=cleaning.needs)

    report = dry_run(source, cleaning, 10)

    assert report[:4] == [
        "of the first 2 documents 1 stay",
        "license: 1 left out, 0 changed",
        f"  {path}:2: not allowed: second text",
        "duplicates: 0 left out, 0 changed",
    ]


def write_texts(path: Path, num_texts: int) -> Source:
    path.write_text("".join(json.dumps({"text": f"text {number} " + "word " * 300}) + "\n" for number in range(num_texts)))
    return Source("jsonl", (str(path),))


def numbers(line: str) -> list[float]:
    """Return the numbers in a report line: documents per second, core hours, and their price."""
    return [float(number.replace(",", "")) for number in re.findall(r"(?<=[ ])\d[\d,.e-]*(?= documents/s| core|$)", line)]


def test_costs_are_projected_to_the_whole_input(tmp_path: Path) -> None:
    """Reading a tenth of the input, a rule takes a tenth of the time needed for all of it."""
    source = write_texts(tmp_path / "a.jsonl", 2000)
    cleaning = Cleaning(parse_rules(["length:minimum=5", "near_duplicates:words=1"]))

    *_, header, length, near, rest, whole = dry_run(source, cleaning, 200, price=1000.0)

    assert header.startswith("speed of cleaning on one core, and cost for all ")
    assert length.startswith("  length: ")
    assert near.startswith("  near_duplicates: ")
    assert rest.startswith("  reading and comparing: ")
    assert whole.startswith("  all of it: ")
    for line in (whole, near):
        rate, hours, cost = numbers(line)
        # All documents being alike, a dry run reads 2,000.
        assert hours * 3600 * rate == pytest.approx(2000, rel=0.3)
        assert cost == pytest.approx(hours * 1000, abs=0.02)
    assert numbers(near)[0] < numbers(length)[0]


def test_the_first_call_of_a_rule_does_not_count() -> None:
    """The first call of a rule loads packages and models, which takes seconds however many documents there are."""
    costs = RuleCosts()
    for seconds in (1000.0, 0.5, 0.5):
        costs.add("rule", seconds)

    lines = list(costs.report(Projection(3, 0, 0)))

    assert lines[:2] == ["speed of cleaning on one core:", "  rule: 2 documents/s"]


def test_a_single_document_gives_no_costs(tmp_path: Path) -> None:
    report = dry_run(write_texts(tmp_path / "a.jsonl", 1), Cleaning(parse_rules(["length"])), 10)

    assert not any("documents/s" in line for line in report)


def test_a_price_belongs_to_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_texts(tmp_path / "a.jsonl", 1)
    words = ["prepare", "corpus", "--source", "jsonl", "--input", *source.inputs, "--output", str(tmp_path / "out")]

    assert main([*words, "--core-hour-price", "0.05"]) == 2

    assert "--core-hour-price 0.05 belongs to --dry-run" in capsys.readouterr().err
