"""Cleaning rules: their results, their options, and how they are described."""

import json
import pickle
from pathlib import Path

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.sources.document import Document
from megatape.registry import RULES
from tests.helpers.data.rules import PROSE, apply_rule


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        ("length:minimum=5,maximum=8", "12345", "12345"),
        ("length:minimum=5,maximum=8", "1234", "dropped by length: shorter than 5 characters"),
        ("length:minimum=5,maximum=8", "123456789", "dropped by length: longer than 8 characters"),
        ("language:languages=en,de", PROSE, PROSE),
        ("language:languages=de", PROSE, "dropped by language: en"),
        ("language:languages=en,minimum=1.0", PROSE, "dropped by language: en below 1.0"),
        ("gopher_quality", PROSE, PROSE),
        ("gopher_quality", "Too short.", "dropped by gopher_quality: gopher_short_doc"),
        ("gopher_quality:min_words=2,max_words=9", PROSE, "dropped by gopher_quality: gopher_long_doc"),
        ("gopher_repetition", PROSE, PROSE),
        ("gopher_repetition", "one two three\n" * 9, "dropped by gopher_repetition: dup_line_frac"),
        ("fineweb_quality", PROSE, PROSE),
        # Spaces inserted by datatrove after every 256 characters are not kept.
        ("fineweb_quality", f"{PROSE}\n{'x' * 600}.", f"{PROSE}\n{'x' * 600}."),
        ("fineweb_quality", "no mark\n" * 9, "dropped by fineweb_quality: line_punct_ratio"),
        ("c4_quality", PROSE, PROSE),
        ("c4_quality", f"Menu\n{PROSE}\nWe use cookies on this page.", PROSE),
        ("c4_quality:terminal_punctuation=false", f"A line without it\n{PROSE}", f"A line without it\n{PROSE}"),
        ("c4_quality", "One. Two two two. Three.", "dropped by c4_quality: too_few_sentences"),
        ("c4_quality:min_sentences=0", "Menu", "dropped by c4_quality: nothing left"),
        ("personal_data", "Ask ann@uni.edu at 8.8.8.8 or 10.0.0.1", "Ask email@example.com at 22.214.171.124 or 10.0.0.1"),
        ("personal_data", "a@b.org, c@d.org", "email@example.com, email@example.com"),
    ],
)
def test_a_rule_keeps_edits_or_drops_a_text(rule: str, text: str, expected: str) -> None:
    assert apply_rule(rule, text) == expected


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (["foo"], r"rule 'foo' is unknown: choose one of length, language"),
        (["length", "length:minimum=2"], "rule length is given twice"),
        (["near_duplicates:threshold=2"], "rule near_duplicates: threshold: must be less than 1, got '2'"),
        (["near_duplicates:words=1,2"], "rule near_duplicates: words: must be a valid integer"),
        (["length:least=2"], "rule length has no option 'least'; its options: minimum, maximum"),
        (["personal_data:packages=x"], "rule personal_data has no option 'packages'; its options: none"),
        (["near_duplicates:bands=20"], "rule near_duplicates: bands and rows belong together: give both, or a threshold"),
        (["near_duplicates:bands=20,rows=7"], "rule near_duplicates: 20 bands of 7 rows are more than 128 permutations"),
        (["length:5"], "rule length: '5' is not option=value; its options: minimum, maximum"),
        (["length:minimum=1,minimum=2"], "rule length: minimum is given twice"),
        (["length:minimum=10,maximum=5"], "rule length: maximum 5 is below minimum 10, so no document is kept: exchange them"),
        (["language"], "rule language needs languages: write language:languages=..."),
        (["gopher_repetition:x=1"], "rule gopher_repetition has no option 'x'; its options: none"),
    ],
)
def test_impossible_rules_are_refused(rules: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rules(rules)


def test_rules_are_pickled_for_workers_without_their_models() -> None:
    document = Document(PROSE, "")
    cleaning = Cleaning(parse_rules(["language:languages=en,de,minimum=0.5", "near_duplicates"]))
    decision = cleaning.decide(document)  # loads the model

    unpickled: Cleaning = pickle.loads(pickle.dumps(cleaning))

    assert unpickled == cleaning
    assert unpickled.decide(document) == decision


def test_rules_are_described_with_their_options_and_versions() -> None:
    cleaning = Cleaning(parse_rules(["language:languages=en,de,minimum=0.5", "near_duplicates"]))

    language, near = json.loads(json.dumps(cleaning.describe()))

    assert language["rule"] == "language"
    assert language["options"] == {"languages": ["en", "de"], "minimum": 0.5}
    assert near["options"] == {"threshold": 0.8, "permutations": 128, "words": 5, "bands": 14, "rows": 9}
    assert "datasketch" in near["packages"]


def test_a_rule_whose_package_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatape.data.cleaning.rules.language.Language.packages", ("missing-package",))

    with pytest.raises(ModuleNotFoundError, match="missing-package"):
        parse_rules(["language:languages=en"])


def test_every_rule_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/clean_text.md").read_text()

    assert [name for name in RULES if f"| `{name}` |" not in page] == []
