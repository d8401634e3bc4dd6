"""A dry run decides as the preparation does."""

import json
from pathlib import Path

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.dry_run import dry_run
from megatape.data.sources.source import Source


def test_a_rule_sees_the_fields_of_records(tmp_path: Path) -> None:
    """Without the field, the rule dropped every document of a dry run."""
    path = tmp_path / "a.jsonl"
    records = [{"text": "first text", "license": "mit"}, {"text": "second text", "license": "gpl-3.0"}]
    path.write_text("\n".join(map(json.dumps, records)))
    cleaning = Cleaning(parse_rules(["license:allow=mit"]))
    source = Source("jsonl", (str(path),), fields=cleaning.needs)

    report = dry_run(source, cleaning, 10)

    assert report == [
        "of the first 2 documents 1 stay",
        "license: 1 left out, 0 changed",
        f"  {path}:2: not allowed: second text",
        "duplicates: 0 left out, 0 changed",
    ]
