"""Cleaning a corpus: nothing depends on how a source is split into units."""

import json
from collections import Counter
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
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.passes.decision_pass import DecisionPass
from megatape.data.prepare.passes.unit_passes import UnitPasses
from megatape.data.prepare.queue.work_queue import Step
from megatape.data.shards.entries import Index
from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.tables.document_tables import DocumentTables
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
    """Return the text with this number, 120 words long, after replacing the first `changed` words."""
    words = np.random.default_rng(number).integers(0, 5000, 120)
    words[:changed] += number * 7
    return " ".join(f"w{word}" for word in words.tolist())


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Write two folders with equal, similar and short texts, some in the same file, some in others."""
    texts = []
    for file in range(4):
        texts.append([words_of(10 * file + line) for line in range(10)])
    texts[1][2] = texts[0][3]  # equal to an earlier text
    texts[1][3] = words_of(4, changed=1) + " a@b.org"  # Similar to a text in another file
    texts[1][5] = words_of(14, changed=1)  # similar to the text before
    texts[3][5] = words_of(4, changed=1) + " c@d.org"  # After masking, equal to a text dropped as similar
    texts[2][5] = words_of(8) + " e@f.org"  # similar to a text in the other folder
    texts[2][6] = "short"
    texts[3][7] = "short"
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


ONE_UNIT = 2**20
SEVERAL_UNITS = 3000


def test_the_number_of_units_changes_nothing(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The same documents are written and counted, whether one unit is judged as it is read or many are compared."""
    texts: dict[int, dict[str, list[str]]] = {}
    indexes: dict[int, Index] = {}
    for unit_bytes in (ONE_UNIT, SEVERAL_UNITS):
        options = in_units(corpus, unit_bytes)
        folder = tmp_path / str(unit_bytes)
        index, _ = prepare(options, folder)
        check_ledger(index)
        assert index.rules == options.cleaning.describe()
        assert load_index(folder).rules == index.rules
        assert (len(options.source.units()) == 1) == (unit_bytes == ONE_UNIT)
        texts[unit_bytes] = {split: texts_of(folder, split) for split in index.splits}
        indexes[unit_bytes] = index

    assert texts[SEVERAL_UNITS] == texts[ONE_UNIT]
    assert indexes[SEVERAL_UNITS].ledger == indexes[ONE_UNIT].ledger
    assert indexes[SEVERAL_UNITS].counts == indexes[ONE_UNIT].counts


def test_documents_are_counted_and_masked(corpus: PreparationOptions, tmp_path: Path) -> None:
    index, _ = prepare(corpus, tmp_path / "out")

    counts_of_a, counts_of_b = index.ledger.values()
    assert counts_of_a.read == 20
    assert counts_of_a.dropped == {"duplicates": 1, "near_duplicates": 2}
    assert counts_of_b.read == 20
    assert counts_of_b.dropped == {
        "empty documents": 1,
        "length: shorter than 10 characters": 2,
        "duplicates": 1,
        "near_duplicates": 1,
    }
    texts = [text for split in index.splits for text in texts_of(tmp_path / "out", split)]
    assert words_of(4) in texts
    assert [text for text in texts if "@" in text and "example.com" not in text] == []


def test_keeping_duplicates_keeps_rules(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Exact duplicates are near duplicates, too, and must survive that rule."""
    options = in_units(corpus, SEVERAL_UNITS)

    index, _ = prepare(replace(options, cleaning=replace(options.cleaning, drop_duplicates=False)), tmp_path / "out")

    assert index.counts == {"empty documents": 1, "length: shorter than 10 characters": 2, "near_duplicates": 5}


def test_without_comparisons_one_pass_is_enough(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(UnitPasses, "first_pass", lambda *arguments, **options: calls.append(arguments))
    cleaning = Cleaning(parse_rules(["length:minimum=10"]), drop_duplicates=False)

    index, _ = prepare(replace(in_units(corpus, SEVERAL_UNITS), cleaning=cleaning), tmp_path / "out")

    assert index.counts == {"empty documents": 1, "length: shorter than 10 characters": 2}
    assert calls == []


def test_a_preparation_does_not_continue_with_other_rules(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = in_units(corpus, SEVERAL_UNITS)
    write_pass = UnitPasses.write_pass

    def fail_at_unit_2(passes: UnitPasses, number: int, *arguments: Any, **keywords: Any) -> None:
        if number == 2:
            raise OSError("the disk is full")
        write_pass(passes, number, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(UnitPasses, "write_pass", fail_at_unit_2)
        with pytest.raises(OSError, match="the disk is full"):
            prepare(options, tmp_path / "out")

    other_rules = Cleaning(parse_rules(["length:minimum=11", *RULES_OF_CORPUS[1:]]))
    with pytest.raises(ValueError, match="was begun with other rules: .*'minimum': 10.*, now .*'minimum': 11"):
        prepare(replace(options, cleaning=other_rules), tmp_path / "out")

    prepare(options, tmp_path / "out")
    prepare(options, tmp_path / "uninterrupted")
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "uninterrupted")


def test_a_file_that_grew_between_the_passes(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly the compared documents are written: the file is not read again."""
    options = in_units(corpus, 10_000)
    prepare(options, tmp_path / "undisturbed")
    later_steps = DecisionPass.later_steps

    def grow_before_later_steps(decision_pass: DecisionPass) -> list[Step]:
        with open(Path(options.source.inputs[1]) / "3.jsonl", "a") as file:
            file.write(json.dumps({"text": "one more of these documents"}) + "\n")
        return later_steps(decision_pass)

    monkeypatch.setattr(DecisionPass, "later_steps", grow_before_later_steps)
    prepare(options, tmp_path / "out")

    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "undisturbed")


@pytest.fixture
def dry_run_words(source: Source) -> list[str]:
    """Return a command line preparing the texts, without --output."""
    words = ["prepare", "corpus", "--source", "jsonl", "--input", *source.inputs]
    for rule in ("length:minimum=10", "personal_data", "near_duplicates"):
        words += ["--rule", rule]
    return words


def test_a_dry_run_has_the_counts_and_locations_of_a_preparation(
    dry_run_words: list[str], tmp_path: Path, command: Command
) -> None:
    before = sorted(tmp_path.rglob("*"))

    status, output, errors = command(*dry_run_words, "--dry-run")

    assert (status, errors) == (0, "")
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"
    assert "of the first 39 documents 32 stay" in output
    assert "length: 2 left out, 0 changed" in output
    assert "personal_data: 0 left out, 4 changed" in output
    assert "near_duplicates: 3 left out, 0 changed" in output
    assert "duplicates: 2 left out, 0 changed" in output
    location = f"{tmp_path / 'b' / '3.jsonl'}:9: changed: "
    (changed_line,) = [line for line in output.splitlines() if location in line]
    assert changed_line.endswith(" g@h.org")
    assert f"  {tmp_path / 'b' / '2.jsonl'}:7: shorter than 10 characters: short" in output


def test_a_dry_run_of_the_first_documents(dry_run_words: list[str], command: Command) -> None:
    _, output, _ = command(*dry_run_words, "--dry-run", "5")
    assert "of the first 5 documents 5 stay" in output


def test_a_preparation_needs_an_output(dry_run_words: list[str], command: Command) -> None:
    status, _, errors = command(*dry_run_words)
    assert status == 2
    assert "--output is missing" in errors


@pytest.fixture(params=["jsonl", "parquet"])
def record_words(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return a command line preparing records by rules about URLs, licenses and texts, without --output."""
    folder = tmp_path / "records"
    folder.mkdir()
    for file in range(2):
        records = [record_of(file, number) for number in range(30)]
        if request.param == "parquet":
            parquet.write_table(pa.Table.from_pylist(records), folder / f"{file}.parquet")
        else:
            lines = [json.dumps(record) + "\n" for record in records]
            (folder / f"{file}.jsonl").write_text("".join(lines))
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "domains").write_text("blocked.example\n")
    words = ["prepare", "corpus", "--source", request.param, "--input", str(folder), "--vocab-size", "320"]
    words += ["--validation-share", "0.2"]
    words += ["--rule", f"urls:block={lists}"]
    words += ["--rule", "license:allow=cc-*,field=metadata.license"]
    words += ["--rule", f"fasttext_classifier:model={fasttext_model()},label=en,minimum=0.0001"]
    return words


def record_of(file: int, number: int) -> dict[str, Any]:
    sites = ["www.first.example", "first.example:80", "second.example", "blocked.example", "sub.blocked.example"]
    license_name = "cc-by-4.0"
    if number == 6:
        license_name = "GPL-3.0"
    return {
        "text": f"This is English text with the number {number}, from file {file}. {words_of(30 * file + number)}",
        "url": f"https://{sites[number % len(sites)]}/{number}",
        "metadata": {"license": license_name, "other": number},
    }


@pytest.mark.parametrize("options", [[], ["--unit-bytes", "6000", "--workers", "2"]], ids=["one pass", "two passes"])
def test_rules_about_records(record_words: list[str], options: list[str], tmp_path: Path, command: Command) -> None:
    """URLs and licenses in nested fields are checked, keeping scores, and the report counts domains."""
    out = tmp_path / "out"

    status, _, errors = command(*record_words, "--output", out, *options)

    assert status == 0, errors
    index = load_index(out)
    assert index.counts == {"license: not allowed": 2, "urls: blocked": 24}
    assert [rule["rule"] for rule in index.rules] == ["urls", "license", "fasttext_classifier"]
    assert (len(index.document_tables["train"]) > 1) == (options != [])
    check_scores(out, index, command)
    check_domains(out, command)


def check_scores(folder: Path, index: Index, command: Command) -> None:
    document = DocumentTables(folder, index, "train").document(3)
    assert 0.0001 < json.loads(document.scores)["fasttext_classifier"] <= 1.001

    status, output, errors = command("data", "where", folder, "--document", 3)
    assert status == 0, errors
    assert f"scores:    {document.scores}" in output


def check_domains(folder: Path, command: Command) -> None:
    status, output, errors = command("data", "report", folder, "--verify")
    assert status == 0, errors
    domains = []
    counts = Counter[str]()
    for line in output.splitlines():
        if line.startswith(("first.example", "second.example")):
            domain, count, *_ = line.split()
            domains.append(domain)
            counts[domain] += int(count)
    assert domains == ["first.example", "second.example"] * 2
    assert counts == {"first.example": 22, "second.example": 12}


def test_sources_without_fields_have_no_rules_about_them(record_words: list[str], tmp_path: Path, command: Command) -> None:
    status, _, errors = command(*record_words, "--output", tmp_path / "text", "--source", "text")
    assert status == 2
    assert "source text have no fields, but a rule reads url: remove it" in errors
