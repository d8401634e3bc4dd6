"""Licenses. test_rule.py has length and language."""

from typing import Any

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.counts import RecordCounts
from megatape.data.io.records import Record
from megatape.data.sources.document import Document
from megatape.data.sources.fields import documents_of
from megatape.data.sources.source import Source
from megatape.errors import UserError


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"license": "MIT"}, ""),
        ({"license": " cc-by-4.0 "}, ""),
        ({"license": ["mit", "CC-BY-SA-3.0"]}, ""),
        ({"license": ["mit", "gpl-3.0"]}, "not allowed"),  # all of them must be
        ({"license": "mit-like"}, "not allowed"),
        ({"license": ""}, "no license"),
        ({"license": []}, "no license"),
        ({"license": 7}, "not allowed"),
        ({}, "no license"),
    ],
)
def test_a_licence_is_one_of_those_allowed(record: dict[str, Any], reason: str) -> None:
    cleaning = Cleaning(parse_rules(["license:allow=MIT,cc-by-*"]))
    source = Source("jsonl", ("x",), fields=cleaning.needs)
    (document,) = documents_of([Record("", record | {"text": "text"})], source, RecordCounts())
    assert document is not None and cleaning.decide(document).reason == reason


def test_a_field_inside_of_others() -> None:
    cleaning = Cleaning(parse_rules(["license:allow=mit,field=metadata.license"]))
    source = Source("jsonl", ("x",), fields=cleaning.needs)
    for metadata, reason in (({"license": "mit"}, ""), ("mit", "no metadata.license"), (None, "no metadata.license")):
        (document,) = documents_of([Record("", {"text": "text", "metadata": metadata})], source, RecordCounts())
        assert document is not None and cleaning.decide(document).reason == reason


def test_a_source_without_fields_is_refused() -> None:
    """Else every document would be dropped, or none."""
    with pytest.raises(UserError, match="the documents of `source` text have no fields, but a rule reads license: remove it"):
        Source("text", ("folder",), fields=("license",))
    assert Document("text", "") == Document("text", "", "", "", {}, {})
