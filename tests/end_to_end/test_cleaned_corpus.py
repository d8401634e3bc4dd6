"""Cleaning of a corpus: nothing depends on how a source is divided."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.command import prepare
from megatape.data.prepare.decision_pass import DecisionPass
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.unit_passes import UnitPasses
from megatape.data.shards.document_tables import DocumentTables
from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.classifiers import fasttext_model
from tests.helpers.data.data_directory import hashes_of, small_tokenizer, texts_of
from tests.helpers.processes.command import Command

RULES_OF_CORPUS = ["length:minimum=10", "personal_data", "near_duplicates"]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return small_tokenizer()


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
def corpus(source: Source, tokenizer: Tokenizer) -> PreparationOptions:
    return PreparationOptions(source, 0.3, tokenizer, 0, cleaning=Cleaning(parse_rules(RULES_OF_CORPUS)))


def in_units(corpus: PreparationOptions, unit_bytes: int) -> PreparationOptions:
    return replace(corpus, source=replace(corpus.source, unit_bytes=unit_bytes))


def test_as_many_units_as_you_like(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The same documents are written and counted, whether one unit is judged as it is read or many are compared."""
    written = []
    ledgers = []
    for size in (2**20, 3000):
        corpus = in_units(corpus, size)
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


def test_keeping_duplicates_keeps_rules(corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal texts resemble each other, too; without both rules one pass is enough."""
    corpus = in_units(corpus, 3000)
    index, _ = prepare(replace(corpus, cleaning=replace(corpus.cleaning, drop_duplicates=False)), tmp_path / "near")
    assert index.counts == {"empty documents": 1, "length: shorter than 10 characters": 2, "near_duplicates": 5}
    passes: list[Any] = []
    monkeypatch.setattr(UnitPasses, "first_pass", lambda *arguments, **rest: passes.append(arguments))
    alone = replace(corpus, cleaning=Cleaning(parse_rules(["length:minimum=10"]), drop_duplicates=False))
    index, _ = prepare(alone, tmp_path / "alone")
    assert index.counts == {"empty documents": 1, "length: shorter than 10 characters": 2} and not passes


def test_other_rules_do_not_go_on(corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = in_units(corpus, 3000)
    write = UnitPasses.write_pass

    def fail_at_two(self: UnitPasses, number: int, *arguments: Any, **rest: Any) -> None:
        if number == 2:
            raise OSError("the disk is full")
        write(self, number, *arguments, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(UnitPasses, "write_pass", fail_at_two)
        with pytest.raises(OSError, match="the disk is full"):
            prepare(corpus, tmp_path / "out")
    other = replace(corpus, cleaning=Cleaning(parse_rules(["length:minimum=11", *RULES_OF_CORPUS[1:]])))
    with pytest.raises(ValueError, match="was begun with other rules: .*'minimum': 10.*, now .*'minimum': 11"):
        prepare(other, tmp_path / "out")
    prepare(corpus, tmp_path / "out")
    prepare(corpus, tmp_path / "whole")
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_a_file_that_grew_between_the_passes(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents that were compared are written, and no other: the file is not read again."""
    corpus = in_units(corpus, 10_000)
    prepare(corpus, tmp_path / "whole")
    compare = DecisionPass.compare

    def grow(self: DecisionPass, *arguments: Any) -> None:
        compare(self, *arguments)
        with open(Path(corpus.source.inputs[1]) / "3.jsonl", "a") as file:
            file.write(json.dumps({"text": "one more of these documents"}) + "\n")

    monkeypatch.setattr(DecisionPass, "compare", grow)
    prepare(corpus, tmp_path / "out")
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


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


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rules_about_records(tmp_path: Path, command: Command, kind: str) -> None:
    """URLs and licenses of nested fields; scores are kept in one pass and in two; domains are counted in the report."""
    folder = tmp_path / "records"
    folder.mkdir()
    sites = ["www.first.example", "first.example:80", "second.example", "blocked.example", "sub.blocked.example"]
    records = [
        {
            "text": f"This is English text with the number {number}, from file {file}. {words_of(30 * file + number)}",
            "url": f"https://{sites[number % len(sites)]}/{number}",
            "metadata": {"license": "GPL-3.0" if number == 6 else "cc-by-4.0", "other": number},
        }
        for file in range(2)
        for number in range(30)
    ]
    for file in range(2):
        part = records[30 * file : 30 * file + 30]
        if kind == "parquet":
            parquet.write_table(pa.Table.from_pylist(part), folder / f"{file}.parquet")
        else:
            (folder / f"{file}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "domains").write_text("blocked.example\n")
    rules = [
        f"urls:block={tmp_path / 'lists'}",
        "license:allow=cc-*,field=metadata.license",
        f"fasttext_classifier:model={fasttext_model()},label=en,minimum=0.0001",
    ]
    corpus = ["prepare", "corpus", "--source", kind, "--input", folder, "--vocab-size", "320", "--validation-share", "0.2"]
    corpus += [word for rule in rules for word in ("--rule", rule)]
    for name, more in (("one", []), ("two", ["--unit-bytes", "6000", "--workers", "2"])):
        status, _, errors = command(*corpus, "--output", tmp_path / name, *more)
        assert status == 0, errors
        index = load_index(tmp_path / name)
        assert index.counts == {"license: not allowed": 2, "urls: blocked": 24}
        assert [rule["rule"] for rule in index.rules] == ["urls", "license", "fasttext_classifier"]
        found = DocumentTables(tmp_path / name, index, "train").document(3)
        assert 0.0001 < json.loads(found.scores)["fasttext_classifier"] <= 1.001
        status, printed, _ = command("data", "where", tmp_path / name, "--document", 3)
        assert status == 0 and f"scores:    {found.scores}" in printed
        status, printed, _ = command("data", "report", tmp_path / name, "--verify")
        domains = [line.split() for line in printed.splitlines() if line.startswith(("first.example", "second.example"))]
        assert status == 0 and [line[0] for line in domains] == ["first.example", "second.example"] * 2
        assert sum(int(line[1]) for line in domains if line[0] == "first.example") == 22
        assert sum(int(line[1]) for line in domains if line[0] == "second.example") == 12
    assert len(index.document_tables["train"]) > 1
    status, _, errors = command(*corpus, "--output", tmp_path / "text", "--source", "text")
    assert status == 2 and "source text have no fields, but a rule reads url: remove it" in errors
