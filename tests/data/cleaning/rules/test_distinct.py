"""The rule `distinct`, dropping documents already in other data directories."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from pyarrow import parquet

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.derived.append import append
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.preparation import open_preparation
from megatape.data.prepare.progress import UnitPass
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.prepare.workers.worker import WorkerJob, run_worker
from megatape.data.prepare.workers.worker_pool import WorkerPool
from megatape.data.shards.entries import SPLITS
from megatape.data.shards.hashes import file_sha256
from megatape.data.shards.index import load_index, save_index
from megatape.data.sources.document import Document
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import MissingPath, UserError
from tests.helpers.checks.slow import slow_but
from tests.helpers.data.data_directory import hashes_of, write_documents
from tests.helpers.data.preparation import UNIT_BYTES, prepare_until, text_of, write_corpus
from tests.helpers.processes.command import Command


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: Tokenizer) -> PreparationOptions:
    """Write six files of lines, next to data directories prepared from two of them, `first` and `third`."""
    texts = write_corpus(tmp_path / "texts")
    corpus = PreparationOptions(replace(texts, max_bad_fraction=0.1, unit_bytes=UNIT_BYTES), 0.1, tokenizer, 0)
    prepare(of_file(corpus, tmp_path / "texts/00.jsonl"), tmp_path / "first")
    prepare(of_file(corpus, tmp_path / "texts/02.jsonl"), tmp_path / "third")
    return corpus


def of_file(corpus: PreparationOptions, path: Path) -> PreparationOptions:
    return replace(corpus, source=replace(corpus.source, inputs=(str(path),)))


def without(corpus: PreparationOptions, *folders: Path, rules: tuple[str, ...] = ()) -> PreparationOptions:
    """Return the corpus without the documents in some data directories."""
    names = ",".join(map(str, folders))
    return replace(corpus, cleaning=Cleaning(parse_rules([f"distinct:folders={names}", *rules])))


class Row(NamedTuple):
    """A document in a data directory's tables."""

    location: str
    text_hash: int


def rows_of(folder: Path) -> set[Row]:
    """Return the documents in both splits."""
    index = load_index(folder)
    rows = set()
    for split in SPLITS:
        for table in index.document_tables[split]:
            for row in parquet.read_table(folder / table.file).to_pylist():
                rows.add(Row(Path(row["place"]).name, row["hash"]))
    return rows


def test_documents_of_both_splits_of_all_folders_are_dropped_and_counted(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Reading only one split of the folders would let a run train on documents from the other."""
    first = tmp_path / "first"
    third = tmp_path / "third"
    known_hashes = {row.text_hash for row in rows_of(first) | rows_of(third)}
    assert len(known_hashes) == 28 + 28
    for folder in (first, third):
        assert load_index(folder).splits["validation"].documents > 0
    prepare(corpus, tmp_path / "whole")

    index, _ = prepare(without(corpus, first, third), tmp_path / "out")

    assert rows_of(tmp_path / "out") == {row for row in rows_of(tmp_path / "whole") if row.text_hash not in known_hashes}
    assert index.counts == {
        "empty documents": 2,
        "bad records": 4,
        # One line in each file repeats document 5, which is in the first folder.
        f"distinct: in {first}": 28 + 6,
        f"distinct: in {third}": 28,
    }


def test_texts_are_compared_after_all_other_rules(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Tables have hashes of edited texts, so comparing before an editing rule would find nothing."""
    lines = [f'{{"text": "Write to somebody@company.com about number {number}."}}' for number in range(20)]
    path = tmp_path / "texts/00.jsonl"
    path.write_text("\n".join(lines))
    edited = tmp_path / "edited"
    cleaning = Cleaning(parse_rules(["personal_data"]))
    prepare(replace(of_file(corpus, path), cleaning=cleaning, validation_share=0.5), edited)

    cleaning = without(corpus, edited, rules=("personal_data",)).cleaning
    known = cleaning.decide(Document("Write to anybody@company.org about number 3.", ""))
    new = cleaning.decide(Document("Write to anybody@company.org about number 77.", ""))

    assert list(cleaning.rules) == ["personal_data", "distinct"]
    assert known.label == f"distinct: in {edited}"
    assert new.label == ""


def test_a_single_document_leaves_a_split_empty(corpus: PreparationOptions, tmp_path: Path) -> None:
    path = tmp_path / "texts/00.jsonl"
    path.write_text('{"text": "Write to somebody@company.com at once."}\n')
    cleaning = Cleaning(parse_rules(["personal_data"]))

    with pytest.raises(ValueError, match="split got none"):
        prepare(replace(of_file(corpus, path), cleaning=cleaning, validation_share=0.5), tmp_path / "out")


@pytest.mark.parametrize("workers", slow_but([3], [1, 3]))
def test_resumes_to_the_same_bytes_unless_a_folder_has_changed(
    corpus: PreparationOptions, tmp_path: Path, workers: int
) -> None:
    """Without the folders in the plan, one preparation would mix decisions about two versions of a folder."""
    first = tmp_path / "first"
    prepare(without(corpus, first), tmp_path / "whole")
    prepare_until(without(corpus, first), tmp_path / "out", UnitPass.FIRST, 4)
    index = (first / "index.json").read_bytes()

    append([tmp_path / "third"], first)
    with pytest.raises(UserError, match=r"out.partial was begun with other rules: .*distinct.*Give the same inputs"):
        prepare(without(corpus, first), tmp_path / "out", workers=workers)

    (first / "index.json").write_bytes(index)
    prepare(without(corpus, first), tmp_path / "out", workers=workers)
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


def test_a_worker_that_starts_after_a_change_ends_the_command(corpus: PreparationOptions, tmp_path: Path) -> None:
    first = tmp_path / "first"
    folder = PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS)
    with open_preparation(without(corpus, first), folder, workers=2) as preparation:
        append([tmp_path / "third"], first)
        options = replace(preparation.options, tokenizer=None)
        job = WorkerJob(options, folder.output, DEFAULT_TIMEOUTS, preparation.task, num_threads=1, imports=())
        with WorkerPool(run_worker, (job,), 1) as pool:
            error = next(message for message in pool.messages() if isinstance(message, Exception))

    assert isinstance(error, UserError)
    assert "files or folders of `rule` have changed since the command began" in str(error)


def test_a_missing_folder_is_refused(corpus: PreparationOptions, tmp_path: Path) -> None:
    with pytest.raises(MissingPath, match=r"rule distinct: .*missing is not a data directory"):
        without(corpus, tmp_path / "missing")


def test_imported_data_is_refused(corpus: PreparationOptions, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Imported data has no tables with document hashes."""
    (tmp_path / "imported").mkdir()
    write_documents(tmp_path / "imported", ["a text"], tokenizer)

    with pytest.raises(UserError, match="rule distinct: .*imported has no tables of documents: .* prepare the data again"):
        without(corpus, tmp_path / "imported")


def test_a_corrupted_table_is_refused(corpus: PreparationOptions, tmp_path: Path) -> None:
    first = tmp_path / "first"
    table = load_index(first).document_tables["train"][0]
    content = parquet.read_table(first / table.file)
    no_hashes = np.zeros(len(content), np.uint64)
    parquet.write_table(content.set_column(4, "hash", [no_hashes]), first / table.file)

    with pytest.raises(UserError, match=f"rule distinct: .*{table.file}: corrupted, sha256"):
        without(corpus, first)


def test_a_table_of_an_earlier_version_is_refused(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Earlier tables have no document hashes."""
    first = tmp_path / "first"
    index = load_index(first)
    table, *other_tables = index.document_tables["train"]
    path = first / table.file
    parquet.write_table(parquet.read_table(path).drop(["hash"]), path)
    tables = [replace(table, sha256=file_sha256(path)), *other_tables]
    save_index(replace(index, document_tables=index.document_tables | {"train": tables}), first)

    with pytest.raises(UserError, match=f"{table.file} has no hashes of documents.*prepare the folder again with this version"):
        without(corpus, first)


def test_a_dry_run_lists_dropped_documents(corpus: PreparationOptions, tmp_path: Path, command: Command) -> None:
    third = tmp_path / "third"
    words = ["prepare", "corpus", "--source", "jsonl", "--input", tmp_path / "texts/02.jsonl", "--dry-run"]

    status, printed, errors = command(*words, "--rule", f"distinct:folders={third}")

    assert status == 0, errors
    assert f"in {third}" in printed
    assert text_of(200)[:20] in printed
