"""Tables of documents and the ledger: every token leads to its document, and every document read is accounted for."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from megatape.data.counts import DocumentCounts
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.hashes import split_of
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.tables.document_tables import DocumentTables
from megatape.data.shards.tables.table_writer import TableWriter, table_rows
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.datasets.token_dataset import TokenDataset
from tests.helpers.processes.command import Command


class Prepared(NamedTuple):
    """A data directory, and the inputs that it was prepared from."""

    folder: Path
    inputs: list[Path]


def write_input(file: Path, first_number: int) -> None:
    """Write 30 lines: 27 documents, one of which every input has, a blank document, and a line that is no JSON."""
    lines = []
    for line in range(30):
        text = f"Document {first_number + line}: " + "the fox jumps " * (line % 7)
        lines.append(json.dumps({"text": text, "url": f"http://{file.stem}/{line}"}))
    lines[3] = "{"
    lines[4] = json.dumps({"text": " "})
    lines[5] = json.dumps({"text": "in all of them"})
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Prepared:
    """A data directory of three units, from a folder of two files and from a file."""
    parent = tmp_path_factory.mktemp("document-tables")
    web = parent / "web"
    web.mkdir()
    books = parent / "books.jsonl"
    for number, file in enumerate([web / "0.jsonl", web / "1.jsonl", books]):
        write_input(file, 100 * number)
    inputs = [web, books]
    source = Source("jsonl", tuple(map(str, inputs)), unit_bytes=3000)
    prepare(PreparationOptions(source, 0.2, tokenizer, 0), parent / "out")
    return Prepared(parent / "out", inputs)


@pytest.fixture
def folder(prepared: Prepared, tmp_path: Path) -> Path:
    """A copy of the prepared data directory, to damage."""
    return shutil.copytree(prepared.folder, tmp_path / "out")


def source_line(location: str) -> dict[str, str]:
    """Return the line of an input that a document's location names."""
    path, line = location.rsplit(":", 1)
    content: dict[str, str] = json.loads(Path(path).read_text().splitlines()[int(line) - 1])
    return content


def check_documents(folder: Path, split: str) -> set[str]:
    """Compare the first and last token of each document with its text in the inputs. Return the locations of documents."""
    dataset = TokenDataset(StoredSplit(folder, split), 1)
    tables = DocumentTables(folder, load_index(folder), split)
    tokenizer = dataset.split.tokenizer()
    locations = set()
    first = 0
    for number, num_tokens in enumerate(np.concatenate(list(tables.lengths())).tolist()):
        document = tables.find(first)
        assert document.number == number
        assert document.first == first
        assert tables.find(first + num_tokens - 1) == document
        assert tables.document(number) == document

        ids = dataset.split.stream(first, first + num_tokens)
        assert np.array_equal(dataset.split.document(number), ids)
        source = source_line(document.location)
        assert tokenizer.decode(ids) == source["text"]
        assert document.url == source.get("url", "")
        assert document.bytes == len(source["text"].encode())
        assert split_of(source["text"].encode(), 0.2) == split
        locations.add(document.location)
        first += num_tokens
    assert first == dataset.split.num_tokens
    return locations


def test_every_token_has_its_document(prepared: Prepared) -> None:
    index = load_index(prepared.folder)
    locations = set()
    for split in index.splits:
        assert len(index.document_tables[split]) > 1
        locations |= check_documents(prepared.folder, split)
    assert len(locations) == 3 * 27 + 1
    assert sum(split.documents for split in index.splits.values()) == len(locations)


def test_locations_of_many_tokens_are_those_found_one_by_one(prepared: Prepared) -> None:
    """Tokens of several tables are looked up at once, in any order and more than once."""
    index = load_index(prepared.folder)
    num_tokens = index.splits["train"].tokens
    assert len(index.document_tables["train"]) > 1
    tables = DocumentTables(prepared.folder, index, "train")
    tokens = np.random.default_rng(0).permutation(np.arange(num_tokens).repeat(2))

    expected = [tables.find(token).location for token in range(num_tokens)]
    assert len(set(expected)) == index.splits["train"].documents
    assert tables.locations(tokens) == [expected[token] for token in tokens.tolist()]
    assert tables.locations(tokens[:0]) == []


def test_each_reads_every_table_of_a_split(prepared: Prepared) -> None:
    index = load_index(prepared.folder)
    for split in index.splits:
        tables = list(DocumentTables(prepared.folder, index, split).each())
        assert len(tables) == len(index.document_tables[split])


@pytest.mark.parametrize("split", ["train", "validation"])
def test_numbers_out_of_range_are_refused(prepared: Prepared, split: str) -> None:
    index = load_index(prepared.folder)
    last_token = index.splits[split].tokens - 1
    tables = DocumentTables(prepared.folder, index, split)
    for token in (-1, last_token + 1):
        with pytest.raises(ValueError, match=f"token {token:,}: the {split} split of .* has tokens 0 to {last_token:,}"):
            tables.find(token)

    last_document = index.splits[split].documents - 1
    stored_split = StoredSplit(prepared.folder, split)
    for number in (-1, last_document + 1):
        with pytest.raises(ValueError, match=f"document {number}: the {split} split of .* has documents 0 to {last_document}"):
            stored_split.document(number)


def test_row_groups_change_nothing(tmp_path: Path) -> None:
    """Documents are added in parts that end elsewhere than row groups and batches."""
    writer = TableWriter(tmp_path, "train", group_rows=7)
    lengths = [3 + number % 5 for number in range(30)]
    for first, last in ((0, 2), (2, 2), (2, 27), (27, 30)):
        numbers = range(first, last)
        rows = table_rows(
            tokens=lengths[first:last],
            text_bytes=numbers,
            locations=[f"a:{number}" for number in numbers],
            urls=[""] * len(numbers),
            hashes=numbers,
            scores=[{}] * len(numbers),
        )
        writer.add(rows)
    (table,) = writer.close()
    assert table.documents == 30
    assert table.tokens == sum(lengths)

    index = load_index(Path(__file__).parents[3] / "compatibility" / "fixtures" / "data")
    split = replace(index.splits["train"], tokens=table.tokens)
    index = replace(index, splits={"train": split}, document_tables={"train": [table]})
    tables = DocumentTables(tmp_path, index, "train", batch_rows=7)
    document_of_token = np.repeat(np.arange(30), lengths).tolist()
    assert [tables.find(token).number for token in range(table.tokens)] == document_of_token
    assert [tables.document(number).location for number in range(30)] == [f"a:{number}" for number in range(30)]
    assert [len(part) for part in tables.lengths()] == [7, 7, 7, 7, 2]


def test_no_documents_make_no_table(tmp_path: Path) -> None:
    assert TableWriter(tmp_path, "empty").close() == []


def test_a_missing_table_in_the_index_is_refused(prepared: Prepared) -> None:
    index = load_index(prepared.folder)
    shortened = replace(index, document_tables={"train": index.document_tables["train"][1:]})
    with pytest.raises(ValueError, match="the documents in the tables of train have .* tokens, its members"):
        list(DocumentTables(prepared.folder, shortened, "train").each())


def test_a_flipped_bit_in_a_table_is_refused(folder: Path) -> None:
    index = load_index(folder)
    path = folder / index.document_tables["train"][0].file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path.name}: corrupted, sha256 is .*, the index says"):
        DocumentTables(folder, index, "train").find(0)


def test_a_missing_table_file_is_refused(folder: Path) -> None:
    index = load_index(folder)
    path = folder / index.document_tables["train"][0].file
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path.name}: not found, the index lists it"):
        DocumentTables(folder, index, "train").find(0)


def test_tables_do_not_change_what_a_run_trains_on(folder: Path) -> None:
    """A folder without tables has the same fingerprint, and says that it has no tables."""
    fingerprint = TokenDataset(StoredSplit(folder, "train"), 8).fingerprint
    save_index(replace(load_index(folder), document_tables={}, ledger={}), folder)
    assert not {"document_tables", "ledger"} & json.loads((folder / "index.json").read_text()).keys()
    assert TokenDataset(StoredSplit(folder, "train"), 8).fingerprint == fingerprint
    with pytest.raises(ValueError, match="has no tables of documents"):
        DocumentTables(folder, load_index(folder), "train")


def test_the_ledger_counts_the_documents_of_each_input(prepared: Prepared) -> None:
    """The text in every file is written once, and counted as a duplicate once in each input."""
    index = load_index(prepared.folder)
    web, books = map(str, prepared.inputs)
    dropped = {
        web: {"empty documents": 2, "duplicates": 1, "bad records": 2},
        books: {"empty documents": 1, "duplicates": 1, "bad records": 1},
    }
    assert list(index.ledger) == [web, books]
    for name, read, written in ((web, 60, 55), (books, 30, 27)):
        counts = index.ledger[name]
        expected = DocumentCounts(
            read=read, written=written, tokens=counts.tokens, text_bytes=counts.text_bytes, dropped=dropped[name]
        )
        assert asdict(counts) == asdict(expected)
    assert index.ledger[web].text_bytes > index.ledger[books].text_bytes
    assert index.ledger[books].text_bytes > 27 * 10


def test_the_ledger_adds_up_to_the_index(prepared: Prepared) -> None:
    index = load_index(prepared.folder)
    total = check_ledger(index)
    assert total.read == 90
    assert total.written == 82
    assert total.dropped == index.counts


@pytest.mark.parametrize(
    "change",
    [
        DocumentCounts(read=1),
        DocumentCounts(read=1, written=1),
        DocumentCounts(tokens=1),
        DocumentCounts(read=1, dropped={"x": 1}),
    ],
)
def test_a_ledger_that_does_not_add_up_is_refused(prepared: Prepared, change: DocumentCounts) -> None:
    index = load_index(prepared.folder)
    index.ledger[str(prepared.inputs[0])].add(change)
    with pytest.raises(ValueError, match="but the ledger accounts for"):
        check_ledger(index)


@pytest.mark.parametrize("words", [["report"], ["where", "--document", 0]], ids=["report", "where"])
def test_control_characters_do_not_reach_the_terminal(
    tmp_path: Path, tokenizer: Tokenizer, command: Command, words: list[object]
) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("w") as file:
        for number in range(40):
            record = {"text": f"a\tb\n\x1b]0;owned\x07 {number}", "url": "http://\x1b[31m.org/a\nb"}
            file.write(json.dumps(record) + "\n")
    prepare(PreparationOptions(Source("jsonl", (str(path),)), 0.3, tokenizer, 0), tmp_path / "out")

    subcommand, *options = words
    status, printed, _ = command("data", subcommand, tmp_path / "out", *options)
    assert status == 0
    assert "a\tb\n\\x1b]0;owned\\x07 " in printed
    assert "http://\\x1b[31m.org/a\\nb" in printed
    for line in printed.splitlines():
        assert line.replace("\t", "").isprintable(), repr(line)


def test_where_shows_the_document_of_a_token(prepared: Prepared, command: Command) -> None:
    document = DocumentTables(prepared.folder, load_index(prepared.folder), "train").find(100)
    status, printed, errors = command("data", "where", prepared.folder, "--token", "100")
    assert errors == ""
    assert status == 0
    assert f"document:  {document.number} of train" in printed
    assert f"location:  {document.location}" in printed
    assert f"url:       {document.url}" in printed
    assert "Document" in printed

    status, printed_by_number, _ = command("data", "where", prepared.folder, "--document", document.number)
    assert status == 0
    assert printed_by_number.splitlines()[:3] == printed.splitlines()[:3]
    assert "token:     0 of the document" in printed_by_number


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--token --document is required"),
        (["--token", "1", "--document", "1"], "not allowed with"),
        (["--split", "validation", "--token", "1000000"], "token 1,000,000: the validation split of"),
    ],
)
def test_where_refuses_options_that_name_no_document(
    prepared: Prepared, command: Command, options: list[str], message: str
) -> None:
    status, _, errors = command("data", "where", prepared.folder, *options)
    assert status == 2
    assert message in errors
