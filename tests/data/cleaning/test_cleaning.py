"""Cleaning: what each rule leaves out, in which order, and that nothing depends on how a source is divided."""

import json
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datatrove.pipeline.formatters.pii import PIIFormatter

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.personal_data import EMAIL, IP, PersonalData
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.command import prepare
from megatape.data.prepare.corpus import Corpus
from megatape.data.prepare.preparation import Preparation
from megatape.data.shards.index import check_ledger, load_index
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.registry import RULES
from tests.conftest import Command
from tests.helpers.data_directory import texts_of

RULES_OF_CORPUS = ["length:minimum=10", "personal_data", "near_duplicates"]
PROSE = (
    "The river rises in the hills behind the town and reaches the sea after forty miles. People have fished here for centuries"
    ". In spring the water is high and the boats stay in the harbour. A ferry crosses it twice a day, and the bridge that "
    "was built in the last century carries the road to the north. Most visitors come in summer for the beaches."
)


def verdict(rule: str, text: str) -> str:
    """The text that a rule leaves, or its reason with the rule's name."""
    decision = Cleaning(parse_rules([rule])).decide(text)
    return f"dropped by {decision.label}" if decision.text is None else decision.text


@pytest.mark.parametrize(
    ("rule", "text", "wanted"),
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
def test_what_a_rule_leaves(rule: str, text: str, wanted: str) -> None:
    assert verdict(rule, text) == wanted


PARTS = [*"@.-_!#[]:,\\aé中²٣ \n", "..", "b1", "a-b", "ab:", "@a.b", "x@y.z", "255", "1.2.3.4", "8.8.8.8", "[8.8.8.8]"]


def test_personal_data_is_what_datatrove_finds() -> None:
    """The same text as by its own search from every word on."""
    search, draw, found = PIIFormatter(email_replacement=EMAIL, ip_replacement=IP), random.Random(0), 0
    for _ in range(4000):
        parts = draw.sample(PARTS, draw.randint(3, len(PARTS)))
        text = "".join(draw.choices(parts, k=draw.choice((3, 8, 30, 100))))
        wanted = search.format(text)
        assert PersonalData().apply(text) == wanted
        found += EMAIL in wanted
    assert found > 500


@pytest.mark.timeout(60)  # the search from every word on takes hours
@pytest.mark.parametrize("text", ["a-" * 500_000, "a-" * 300_000 + "@" + "b" * 300_000, "a.b" * 200_000 + "@"])
def test_personal_data_in_a_text_without_spaces(text: str) -> None:
    assert PersonalData().apply(text) == text


def test_decontamination(tmp_path: Path) -> None:
    """Thirteen words in a row of any string of a record, whatever their case and punctuation; not twelve."""
    words = [f"word{number}" for number in range(40)]
    line = {"question": " ".join(words[:20]), "choices": ["short", {"text": " ".join(words[20:])}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "b.txt").write_text(PROSE)
    rule = f"decontaminate:files={tmp_path / 'a.jsonl'},{tmp_path / 'b.txt'}"
    shares = "dropped by decontaminate: shares 13 words with {}"
    assert verdict(rule, "Before, " + ", ".join(words[3:16]).upper() + "; after") == shares.format(tmp_path / "a.jsonl")
    assert verdict(rule, " ".join(words[25:38])) == shares.format(tmp_path / "a.jsonl")
    assert verdict(rule, f"x {PROSE[40:200]} y") == shares.format(tmp_path / "b.txt")
    for clean in (" ".join(words[3:15]), " ".join(words[14:26]), " ".join(reversed(words)), "none of its words"):
        assert verdict(rule, clean) == clean
    described = Cleaning(parse_rules([rule])).describe()
    (tmp_path / "b.txt").write_text(PROSE + " More.")
    assert Cleaning(parse_rules([rule])).describe() != described  # another file of this name is another rule
    (tmp_path / "b.txt").write_text("only a few words")
    with pytest.raises(ValueError, match="b.txt has no text of 13 words or more"):
        verdict(rule, "any")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (["foo"], r"rule 'foo' is unknown: choose one of length, language"),
        (["length", "length:minimum=2"], "rule length is given twice"),
        (["near_duplicates:threshold=2"], "rule near_duplicates: threshold is '2': Input should be less than 1"),
        (["near_duplicates:words=1,2"], "rule near_duplicates: words is '1,2': Input should be a valid integer"),
        (["length:least=2"], "rule length has no option 'least'; its options: minimum, maximum"),
        (["personal_data:packages=x"], "rule personal_data has no option 'packages'; its options: none"),
        (["length:5"], "rule length: '5' is no option=value; its options: minimum, maximum"),
        (["length:minimum=1,minimum=2"], "rule length: minimum is given twice"),
        (["language"], "rule language needs languages: write language:languages=..."),
        (["gopher_repetition:x=1"], "rule gopher_repetition has no option 'x'; its options: none"),
    ],
)
def test_rules_that_are_refused(rules: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rules(rules)


def test_rules_are_described_with_versions_and_travel_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaning = Cleaning(parse_rules(["language:languages=en,de,minimum=0.5", "near_duplicates"]))
    decision = cleaning.decide(PROSE)  # loads the model, which is not to be pickled
    copy: Cleaning = pickle.loads(pickle.dumps(cleaning))
    assert copy == cleaning and copy.decide(PROSE) == decision
    language, near = json.loads(json.dumps(cleaning.describe()))
    assert language["options"] == {"languages": ["en", "de"], "minimum": 0.5} and language["rule"] == "language"
    assert near["options"] == {"threshold": 0.8, "permutations": 128, "words": 5} and "datasketch" in near["packages"]
    monkeypatch.setattr("megatape.data.cleaning.language.Language.packages", ("missing-package",))
    with pytest.raises(ModuleNotFoundError, match="missing-package"):
        parse_rules(["language:languages=en"])


def test_every_rule_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/data_cleaning.md").read_text()
    assert [name for name in RULES if f"| `{name}` |" not in page] == []


def words_of(number: int, changed: int = 0) -> str:
    """A text of 120 words, the first `changed` of which differ from its own."""
    words = np.random.default_rng(number).integers(0, 5000, 120).tolist()
    return " ".join(f"w{number * 7 + word if place < changed else word}" for place, word in enumerate(words))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Two folders of texts: equal, similar and short ones, some in the same file, some in others."""
    texts = [[words_of(10 * file + line) for line in range(10)] for file in range(4)]
    texts[1][2] = texts[0][3]  # equal to an earlier one
    texts[1][3] = words_of(4, changed=1) + " a@b.org"  # similar to one of another file
    texts[1][5] = words_of(14, changed=1)  # similar to the one before
    texts[3][5] = words_of(4, changed=1) + " c@d.org"  # equal to one that goes because it is similar, once it is masked
    texts[2][5] = words_of(8) + " e@f.org"  # similar to one in the other folder
    texts[2][6] = texts[3][7] = "short"
    texts[2][7] = " "
    texts[3][8] += " g@h.org"
    for file, lines in enumerate(texts):
        folder = tmp_path / "ab"[file // 2]
        folder.mkdir(exist_ok=True)
        (folder / f"{file}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in lines))
    return Source("jsonl", (str(tmp_path / "a"), str(tmp_path / "b")))


@pytest.fixture
def corpus(source: Source, tokenizer: Tokenizer) -> Corpus:
    return Corpus(source, 0.3, tokenizer, 0, cleaning=Cleaning(parse_rules(RULES_OF_CORPUS)))


def test_as_many_units_as_you_like(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same documents are written and counted, whether one unit is judged as it is read or many are compared."""
    written, ledgers = [], []
    for size in (2**20, 3000):
        monkeypatch.setattr("megatape.data.sources.units.UNIT_BYTES", size)
        index, _ = prepare(corpus, tmp_path / str(size))
        written.append({split: texts_of(tmp_path / str(size), split) for split in index.splits})
        ledgers.append((index.ledger, index.counts))
        check_ledger(index)
        assert index.rules == corpus.cleaning.describe() == load_index(tmp_path / str(size)).rules
        assert (size == 2**20) == (len(corpus.source.units()) == 1)
    assert written[0] == written[1] and ledgers[0] == ledgers[1]
    short = {"empty documents": 1, "length: shorter than 10 characters": 2}
    (_, a), (_, b) = ledgers[0][0].items()
    assert (a.read, a.dropped) == (20, {"duplicates": 1, "near_duplicates": 2})
    assert (b.read, b.dropped) == (20, {**short, "duplicates": 1, "near_duplicates": 1})
    texts = [text for split in written[0].values() for text in split]
    assert words_of(4) in texts and not any("@" in text and "example.com" not in text for text in texts)


def test_keeping_duplicates_keeps_rules(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal texts resemble each other, too; without both rules one pass is enough."""
    monkeypatch.setattr("megatape.data.sources.units.UNIT_BYTES", 3000)
    index, _ = prepare(replace(corpus, cleaning=replace(corpus.cleaning, drop_duplicates=False)), tmp_path / "near")
    assert index.counts == {"empty documents": 1, "length: shorter than 10 characters": 2, "near_duplicates": 5}
    passes: list[Any] = []
    monkeypatch.setattr(Preparation, "_decide", lambda *arguments, **rest: passes.append(arguments))
    alone = replace(corpus, cleaning=Cleaning(parse_rules(["length:minimum=10"]), drop_duplicates=False))
    index, _ = prepare(alone, tmp_path / "alone")
    assert index.counts == {"empty documents": 1, "length: shorter than 10 characters": 2} and not passes


def test_other_rules_do_not_go_on(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatape.data.sources.units.UNIT_BYTES", 3000)
    write = Preparation._write

    def fail_at_two(self: Preparation, number: int, *arguments: Any, **rest: Any) -> None:
        if number == 2:
            raise OSError("the disk is full")
        write(self, number, *arguments, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(Preparation, "_write", fail_at_two)
        with pytest.raises(OSError, match="the disk is full"):
            prepare(corpus, tmp_path / "out")
    other = replace(corpus, cleaning=Cleaning(parse_rules(["length:minimum=11", *RULES_OF_CORPUS[1:]])))
    with pytest.raises(ValueError, match="was begun with other rules: .*'minimum': 10.*, now .*'minimum': 11"):
        prepare(other, tmp_path / "out")
    prepare(corpus, tmp_path / "out")
    prepare(corpus, tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_file_that_grew_between_the_passes(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatape.data.sources.units.UNIT_BYTES", 10_000)
    compare = Preparation._compare

    def grow(self: Preparation, *arguments: Any) -> None:
        compare(self, *arguments)
        with open(Path(corpus.source.inputs[1]) / "3.jsonl", "a") as file:
            file.write(json.dumps({"text": "one more of these documents"}) + "\n")

    monkeypatch.setattr(Preparation, "_compare", grow)
    with pytest.raises(ValueError, match="3.jsonl: has changed since it was first read: document 11 is another one"):
        prepare(corpus, tmp_path / "out")


def test_dry_run(source: Source, tmp_path: Path, command: Command) -> None:
    """Counts and places as the preparation would have them; nothing is written."""
    words = ["--source", "jsonl", "--input", *source.inputs]
    rules = ["--rule", "length:minimum=10", "--rule", "personal_data", "--rule", "near_duplicates"]
    before = sorted(tmp_path.rglob("*"))
    status, printed, errors = command("prepare", "corpus", *words, *rules, "--dry-run")
    assert (status, errors) == (0, "") and sorted(tmp_path.rglob("*")) == before
    assert "of the first 39 documents 32 stay" in printed
    effects = {"length": (2, 0), "personal_data": (0, 4), "near_duplicates": (3, 0), "duplicates": (2, 0)}
    for name, (dropped, changed) in effects.items():
        assert f"{name}: {dropped} left out, {changed} changed" in printed
    (masked,) = (line for line in printed.splitlines() if f"{tmp_path / 'b' / '3.jsonl'}:9: changed: " in line)
    assert masked.endswith(" g@h.org")
    assert f"  {tmp_path / 'b' / '2.jsonl'}:7: shorter than 10 characters: short" in printed
    assert "of the first 5 documents 5 stay" in command("prepare", "corpus", *words, *rules, "--dry-run", "5")[1]
    status, _, errors = command("prepare", "corpus", *words, *rules)
    assert status == 2 and "--output is missing" in errors
