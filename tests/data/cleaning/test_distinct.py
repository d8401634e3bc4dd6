"""Documents of data directories that are prepared already."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.derived.append import append
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.unit_lease import UnitLease
from megatape.data.prepare.unit_passes import UnitPasses
from megatape.data.shards.entries import SPLITS
from megatape.data.shards.hashes import file_sha256
from megatape.data.shards.index import load_index, save_index
from megatape.data.sources.document import Document
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import MissingPath, UserError
from tests.helpers.checks.slow import slow_but
from tests.helpers.data.data_directory import hashes_of, write_documents
from tests.helpers.data.preparation import UNIT_BYTES, text_of, write_lines
from tests.helpers.processes.command import Command


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: Tokenizer) -> PreparationOptions:
    """Six files of lines, and the data directories `first` and `third` of two of them."""
    write_lines(tmp_path / "texts")
    source = Source("jsonl", (str(tmp_path / "texts"),), max_bad_fraction=0.1, unit_bytes=UNIT_BYTES)
    whole = PreparationOptions(source, 0.1, tokenizer, 0)
    for name, file in (("first", "00"), ("third", "02")):
        source = replace(whole.source, inputs=(str(tmp_path / f"texts/{file}.jsonl"),))
        prepare(replace(whole, source=source), tmp_path / name)
    return whole


def without(corpus: PreparationOptions, *folders: Path, rules: tuple[str, ...] = ()) -> PreparationOptions:
    names = ",".join(map(str, folders))
    return replace(corpus, cleaning=Cleaning(parse_rules([f"distinct:folders={names}", *rules])))


def rows(folder: Path) -> set[tuple[str, int]]:
    """File name and line, and hash, of each document of both splits."""
    index = load_index(folder)
    files = [folder / table.file for split in SPLITS for table in index.document_tables[split]]
    return {(Path(row["place"]).name, row["hash"]) for file in files for row in parquet.read_table(file).to_pylist()}


def test_documents_of_both_splits_of_all_folders_are_dropped_and_counted(corpus: PreparationOptions, tmp_path: Path) -> None:
    """With both splits, since a fault that reads one of them would train on documents of the other."""
    index, _ = prepare(without(corpus, tmp_path / "first", tmp_path / "third"), tmp_path / "out")
    prepare(corpus, tmp_path / "whole")
    known = rows(tmp_path / "first") | rows(tmp_path / "third")
    hashes = {text_hash for _, text_hash in known}
    assert len(hashes) == 28 + 28 and min(
        load_index(tmp_path / name).splits["validation"].documents for name in ("first", "third")
    )
    assert rows(tmp_path / "out") == {row for row in rows(tmp_path / "whole") if row[1] not in hashes}
    # A line of each file is document 5, which is in the first folder.
    in_first = f"distinct: in {tmp_path / 'first'}"
    in_third = f"distinct: in {tmp_path / 'third'}"
    assert index.counts == {"empty documents": 2, "bad records": 4, in_first: 28 + 6, in_third: 28}


def test_texts_are_compared_after_all_other_rules(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The tables have the hashes of final texts: before a rule that edits them, nothing would be found."""
    (tmp_path / "texts/00.jsonl").write_text('{"text": "Write to somebody@company.com at once."}\n')
    source = replace(corpus.source, inputs=(str(tmp_path / "texts/00.jsonl"),))
    edited = replace(corpus, source=source, cleaning=Cleaning(parse_rules(["personal_data"])), validation_share=0.5)
    with pytest.raises(ValueError, match="split got none"):
        prepare(edited, tmp_path / "none")
    lines = [f'{{"text": "Write to somebody@company.com about number {number}."}}' for number in range(20)]
    (tmp_path / "texts/00.jsonl").write_text("\n".join(lines))
    prepare(edited, tmp_path / "edited")
    cleaning = without(corpus, tmp_path / "edited", rules=("personal_data",)).cleaning
    assert list(cleaning.rules) == ["personal_data", "distinct"]
    decisions = [cleaning.decide(Document(f"Write to anybody@company.org about number {n}.", "")) for n in (3, 77)]
    assert [decision.label for decision in decisions] == [f"distinct: in {tmp_path / 'edited'}", ""]


@pytest.mark.parametrize("workers", slow_but([3], [1, 3]))
def test_resumes_to_the_same_bytes_unless_a_folder_has_changed(
    corpus: PreparationOptions, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that leaves the folders out of the plan would mix decisions of two states of a folder."""
    first = tmp_path / "first"
    prepare(without(corpus, first), tmp_path / "whole")
    decide = UnitPasses.first_pass

    def fail(self: UnitPasses, number: int, lease: UnitLease) -> None:
        if number == 4:
            raise OSError("the disk is full")
        decide(self, number, lease)

    with monkeypatch.context() as patch:
        patch.setattr(UnitPasses, "first_pass", fail)
        with pytest.raises(OSError, match="the disk is full"):
            prepare(without(corpus, first), tmp_path / "out")
    index = (first / "index.json").read_bytes()
    append([tmp_path / "third"], first)
    with pytest.raises(UserError, match=r"out.partial was begun with other rules: .*distinct.*Give the same inputs"):
        prepare(without(corpus, first), tmp_path / "out", workers=workers)
    (first / "index.json").write_bytes(index)
    prepare(without(corpus, first), tmp_path / "out", workers=workers)
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_a_worker_that_starts_after_a_change_ends_the_command(
    corpus: PreparationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    start = Preparation.start

    def start_and_change(self: Preparation, *arguments: Any) -> Any:
        plan = start(self, *arguments)
        append([tmp_path / "third"], first)
        return plan

    monkeypatch.setattr(Preparation, "start", start_and_change)
    with pytest.raises(UserError, match="files or folders of `rule` have changed since the command began"):
        prepare(without(corpus, first), tmp_path / "out", workers=2)


def test_folders_that_cannot_be_compared(corpus: PreparationOptions, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Before anything is read, with the way out: no folder, imported data, tables of an earlier version, a corrupted table."""
    with pytest.raises(MissingPath, match=r"rule distinct: .*missing is not a data directory"):
        without(corpus, tmp_path / "missing")
    (tmp_path / "imported").mkdir()
    write_documents(tmp_path / "imported", ["a text"], tokenizer)
    with pytest.raises(UserError, match="rule distinct: .*imported has no tables of documents: .* prepare the data again"):
        without(corpus, tmp_path / "imported")
    first = tmp_path / "first"
    index = load_index(first)
    table = index.document_tables["train"][0]
    content = parquet.read_table(first / table.file)
    parquet.write_table(content.set_column(4, "hash", [np.zeros(len(content), np.uint64)]), first / table.file)
    with pytest.raises(UserError, match=f"rule distinct: .*{table.file}: corrupted, sha256"):
        without(corpus, first)
    parquet.write_table(content.drop(["hash"]), first / table.file)
    tables = [replace(table, sha256=file_sha256(first / table.file)), *index.document_tables["train"][1:]]
    save_index(replace(index, document_tables={**index.document_tables, "train": tables}), first)
    with pytest.raises(UserError, match=f"{table.file} has no hashes of documents.*prepare the folder again with this version"):
        without(corpus, first)


def test_a_dry_run_lists_them(corpus: PreparationOptions, tmp_path: Path, command: Command) -> None:
    rule = f"distinct:folders={tmp_path / 'third'}"
    words = ["prepare", "corpus", "--source", "jsonl", "--input", str(tmp_path / "texts/02.jsonl"), "--dry-run"]
    status, output, _ = command(*words, "--rule", rule)
    assert status == 0 and f"in {tmp_path / 'third'}" in output and text_of(200)[:20] in output
