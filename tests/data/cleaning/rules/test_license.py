"""Licenses. tests/data/cleaning/test_rule.py has length and language."""

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


def reason_for(rule: str, record: dict[str, Any]) -> str:
    """Return why a rule drops a record's document, "" if it stays."""
    cleaning = Cleaning(parse_rules([rule]))
    source = Source("jsonl", ("x",), fields=cleaning.needs)
    (document,) = documents_of([Record("", record | {"text": "text"})], source, RecordCounts())
    assert document is not None
    return cleaning.decide(document).reason


@pytest.mark.parametrize(
    ("license_names", "reason"),
    [
        ("MIT", ""),
        (" cc-by-4.0 ", ""),
        (["mit", "CC-BY-SA-3.0"], ""),
        (["mit", "gpl-3.0"], "not allowed"),  # every license has to be allowed
        ("mit-like", "not allowed"),
        ("", "no license"),
        ([], "no license"),
        (7, "not allowed"),
    ],
)
def test_only_allowed_licenses_stay(license_names: Any, reason: str) -> None:
    assert reason_for("license:allow=MIT,cc-by-*", {"license": license_names}) == reason


def test_a_record_without_license_is_dropped() -> None:
    assert reason_for("license:allow=MIT,cc-by-*", {}) == "no license"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"license": "mit"}, ""),
        ("mit", "no metadata.license"),
        (None, "no metadata.license"),
    ],
)
def test_a_nested_field_is_read(metadata: Any, reason: str) -> None:
    assert reason_for("license:allow=mit,field=metadata.license", {"metadata": metadata}) == reason


def test_a_source_without_fields_is_refused() -> None:
    """A filter on a source without fields would drop every document, or none."""
    with pytest.raises(UserError, match="the documents of `source` text have no fields, but a rule reads license: remove it"):
        Source("text", ("folder",), fields=("license",))


def test_a_document_has_no_url_scores_or_fields_by_default() -> None:
    assert Document("text", "") == Document("text", "", "", "", {}, {})
