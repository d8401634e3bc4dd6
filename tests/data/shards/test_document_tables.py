"""For every token its document, and of every document what became of it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from megatape.data.counts import DocumentCounts
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.document_tables import DocumentTables
from megatape.data.shards.hashes import split_of
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.table_writer import TableWriter
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.token_dataset import TokenDataset
from tests.helpers.processes.command import Command


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """A folder of two files and a file, which are three units."""
    (tmp_path / "web").mkdir()
    files = [tmp_path / "web" / "0.jsonl", tmp_path / "web" / "1.jsonl", tmp_path / "books.jsonl"]
    for number, file in enumerate(files):
        texts = [f"Document {100 * number + line}: " + "the fox jumps " * (line % 7) for line in range(30)]
        lines = [json.dumps({"text": text, "url": f"http://{file.stem}/{line}"}) for line, text in enumerate(texts)]
        lines[3] = "{"
        lines[4] = json.dumps({"text": " "})
        lines[5] = json.dumps({"text": "in all of them"})
        file.write_text("\n".join(lines) + "\n")
    return [tmp_path / "web", files[2]]


@pytest.fixture
def folder(inputs: list[Path], tmp_path: Path, tokenizer: Tokenizer) -> Path:
    source = Source("jsonl", tuple(map(str, inputs)), unit_bytes=3000)
    prepare(PreparationOptions(source, 0.2, tokenizer, 0), tmp_path / "out")
    return tmp_path / "out"


def test_every_token_has_its_document(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First and last token of each document of several units, against the texts at the place that the table names."""
    index = load_index(folder)
    places = set()
    for split in index.splits:
        dataset = TokenDataset(StoredSplit(folder, split), 1)
        tables = DocumentTables(folder, index, split)
        tokenizer = dataset.split.tokenizer()
        first = 0
        for number, tokens in enumerate(np.concatenate(list(tables.lengths())).tolist()):
            found = tables.find(first)
            assert found == tables.find(first + tokens - 1)
            assert (found.number, found.first) == (number, first)
            assert found == tables.document(number)
            assert np.array_equal(dataset.split.document(number), dataset.split.stream(first, first + tokens))
            path, line = found.place.rsplit(":", 1)
            source = json.loads(Path(path).read_text().splitlines()[int(line) - 1])
            assert tokenizer.decode(dataset.split.stream(first, first + tokens)) == source["text"]
            assert (found.url, found.bytes) == (source.get("url", ""), len(source["text"].encode()))
            assert split_of(source["text"].encode(), 0.2) == split
            places.add(found.place)
            first += tokens
        assert first == dataset.split.num_tokens
        assert len(index.document_tables[split]) > 1
        list(tables.each())
        for outside in (-1, first):
            with pytest.raises(ValueError, match=f"token {outside:,}: the {split} split of .* has tokens 0 to {first - 1:,}"):
                tables.find(outside)
        for outside in (-1, number + 1):
            with pytest.raises(ValueError, match=f"document {outside}: the {split} split of .* has documents 0 to {number}"):
                dataset.split.document(outside)
    assert len(places) == sum(split.documents for split in index.splits.values()) == 3 * 27 + 1


def test_row_groups_change_nothing(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, "train", group_rows=7)
    lengths = [3 + number % 5 for number in range(30)]
    for first, last in ((0, 2), (2, 2), (2, 27), (27, 30)):
        numbers = range(first, last)
        writer.add(
            tokens=lengths[first:last],
            text_bytes=numbers,
            places=[f"a:{number}" for number in numbers],
            urls=[""] * len(numbers),
            hashes=numbers,
            scores=[{}] * len(numbers),
        )
    (table,) = writer.close()
    assert (table.documents, table.tokens) == (30, sum(lengths))
    index = load_index(Path(__file__).parents[2] / "compatibility" / "fixtures" / "data")
    split = replace(index.splits["train"], tokens=table.tokens)
    index = replace(index, splits={"train": split}, document_tables={"train": [table]})
    tables = DocumentTables(tmp_path, index, "train", batch_rows=7)
    wanted = [number for number, length in enumerate(lengths) for _ in range(length)]
    assert [tables.find(token).number for token in range(table.tokens)] == wanted
    assert [tables.document(number).place for number in range(30)] == [f"a:{number}" for number in range(30)]
    assert [len(part) for part in tables.lengths()] == [7, 7, 7, 7, 2]
    assert TableWriter(tmp_path, "empty").close() == []


def test_folders_without_tables_and_corrupted_ones(folder: Path) -> None:
    """The tables are no part of what a run is trained on; a folder without says so; a flipped bit is found."""
    index = load_index(folder)
    fingerprint = TokenDataset(StoredSplit(folder, "train"), 8).fingerprint
    some = replace(index, document_tables={"train": index.document_tables["train"][1:]})
    with pytest.raises(ValueError, match="the documents in the tables of train have .* tokens, its members"):
        list(DocumentTables(folder, some, "train").each())
    path = folder / index.document_tables["train"][0].file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path.name}: corrupted, sha256 is .*, the index says"):
        DocumentTables(folder, index, "train").find(0)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path.name}: not found, the index lists it"):
        DocumentTables(folder, index, "train").find(0)
    save_index(replace(index, document_tables={}, ledger={}), folder)
    assert not {"document_tables", "ledger"} & json.loads((folder / "index.json").read_text()).keys()
    assert TokenDataset(StoredSplit(folder, "train"), 8).fingerprint == fingerprint
    with pytest.raises(ValueError, match="has no tables of documents"):
        DocumentTables(folder, load_index(folder), "train")


def test_the_ledger_of_each_input(folder: Path, inputs: list[Path]) -> None:
    index = load_index(folder)
    ledger = {name: {**asdict(tally), "tokens": 0, "text_bytes": 0} for name, tally in index.ledger.items()}
    nothing = {"tokens": 0, "text_bytes": 0, "skipped_files": 0, "skipped_bytes": 0}
    web, books = map(str, inputs)
    assert ledger == {
        web: {"read": 60, "written": 55, "dropped": {"empty documents": 2, "duplicates": 1, "bad records": 2}, **nothing},
        books: {"read": 30, "written": 27, "dropped": {"empty documents": 1, "duplicates": 1, "bad records": 1}, **nothing},
    }
    total = check_ledger(index)
    assert (total.read, total.written) == (90, 82)
    assert total.dropped == index.counts
    assert index.ledger[web].text_bytes > index.ledger[books].text_bytes > 27 * 10


@pytest.mark.parametrize(
    "change",
    [
        DocumentCounts(read=1),
        DocumentCounts(read=1, written=1),
        DocumentCounts(tokens=1),
        DocumentCounts(read=1, dropped={"x": 1}),
    ],
)
def test_a_document_that_is_missing_in_the_ledger(folder: Path, inputs: list[Path], change: DocumentCounts) -> None:
    index = load_index(folder)
    index.ledger[str(inputs[0])].add(change)
    with pytest.raises(ValueError, match="but the ledger accounts for"):
        check_ledger(index)


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path, tokenizer: Tokenizer, command: Command) -> None:
    texts = "".join(
        json.dumps({"text": f"a\tb\n\x1b]0;owned\x07 {number}", "url": "http://\x1b[31m.org/a\nb"}) + "\n"
        for number in range(40)
    )
    (tmp_path / "a.jsonl").write_text(texts)
    prepare(PreparationOptions(Source("jsonl", (str(tmp_path / "a.jsonl"),)), 0.3, tokenizer, 0), tmp_path / "out")
    for words in (("report",), ("where", "--document", 0)):
        status, printed, _ = command("data", words[0], tmp_path / "out", *words[1:])
        assert status == 0
        assert "a\tb\n\\x1b]0;owned\\x07 " in printed
        assert "http://\\x1b[31m.org/a\\nb" in printed
        assert all(line.replace("\t", "").isprintable() for line in printed.splitlines())


def test_where_is_a_token(folder: Path, command: Command) -> None:
    index = load_index(folder)
    found = DocumentTables(folder, index, "train").find(100)
    status, printed, errors = command("data", "where", folder, "--token", "100")
    assert (status, errors) == (0, "")
    for text in (f"document:  {found.number} of train", f"place:     {found.place}", f"url:       {found.url}", "Document"):
        assert text in printed
    status, by_number, _ = command("data", "where", folder, "--document", found.number)
    assert status == 0
    assert by_number.splitlines()[:3] == printed.splitlines()[:3]
    assert "token:     0 of the document" in by_number
    for given, message in (((), "--token --document is required"), (("--token", "1", "--document", "1"), "not allowed with")):
        status, _, errors = command("data", "where", folder, *given)
        assert status == 2
        assert message in errors
    status, _, errors = command("data", "where", folder, "--split", "validation", "--token", "1000000")
    assert status == 2
    assert "token 1,000,000: the validation split of" in errors
