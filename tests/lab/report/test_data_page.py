"""megatape data report: what it says of a data directory, as text and as a page, against what was put into it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.contents import Bin, histogram, read_contents
from megatape.data.shards.document_tables import lengths_by_end
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.sources.source import Source
from megatape.data.tokenizers.files import load_tokenizer
from tests.helpers.processes.command import Command
from tests.helpers.runs.report_folders import HOSTILE


@pytest.fixture
def folder(data_directory: Path, tmp_path: Path) -> Path:
    """30 documents of two inputs, two of them equal, one empty, one malformed. Their first words are HTML."""
    inputs = [tmp_path / "web.jsonl", tmp_path / "books.jsonl"]
    for file in inputs:
        lines = [json.dumps({"text": f"{HOSTILE} {file.stem} {'fox ' * 2 ** (line % 6)}", "url": HOSTILE}) for line in range(6)]
        lines += [json.dumps({"text": f"{file.stem} {line} again"}) for line in range(9)]
        file.write_text("\n".join([*lines, json.dumps({"text": "in both"}), json.dumps({"text": " "}), "{"]) + "\n")
    tokenizer = load_tokenizer(data_directory / "tokenizer.model")
    prepare(
        PreparationOptions(Source("jsonl", tuple(map(str, inputs)), max_bad_fraction=1.0), 0.2, tokenizer, 0), tmp_path / "data"
    )
    return tmp_path / "data"


def test_text_and_page(folder: Path, command: Command, tmp_path: Path) -> None:
    status, text, errors = command("data", "report", folder, "--output", tmp_path / "out")
    assert status == 0, errors
    page = (tmp_path / "out" / "index.html").read_text().replace("<wbr>", "")
    web = tmp_path / "web.jsonl"
    books = tmp_path / "books.jsonl"
    header = ["empty documents", "bad records", "duplicates", "tokens"]
    expected = {web: "18 16 1 1 0", books: "18 15 1 1 1", "all": "36 31 2 2 1"}
    for name, counts in expected.items():
        assert re.search(rf"^{name} +{' +'.join(counts.split())} ", text, re.MULTILINE)
    assert re.search(rf"^input +read +written +{' +'.join(header)} ", text, re.MULTILINE)
    rows = {name: re.findall(r"<td>(.*?)</td>", cells) for name, cells in re.findall(r'row">(.*?)</th>(.*)</tr>', page)}
    assert [rows[str(name)][:2] for name in (web, books, "all")] == [["18", "16"], ["18", "15"], ["36", "31"]]

    assert HOSTILE in text and HOSTILE not in page and "&lt;img src=x" in page
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert page.count("<pre>") == len(read_contents(folder).samples) >= 4
    assert all("█" * 30 in shown and "share of all tokens" in shown for shown in (text, page))

    status, _, errors = command("data", "report", folder, "--output", tmp_path / "out")
    assert status == 2 and "out" in errors


def test_lengths_with_and_without_tables(folder: Path) -> None:
    """A folder of an earlier version has no tables and no ledger: lengths come from the tokens then."""
    contents = read_contents(folder)
    for name, split in contents.index.splits.items():
        assert sum(bin.documents for bin in contents.lengths[name]) == split.documents
        assert sum(bin.tokens for bin in contents.lengths[name]) == split.tokens
    save_index(replace(load_index(folder), document_tables={}, ledger={}), folder)
    earlier = read_contents(folder)
    assert earlier.lengths == contents.lengths and earlier.total is None
    assert all(sample.text and not sample.place for sample in earlier.samples)


def test_documents_that_cross_members(folder: Path) -> None:
    """Members of 7 tokens, of which a document may have many, and some have no end."""
    eos_id = load_index(folder).tokenizer.eos_id
    for name, expected in read_contents(folder).lengths.items():
        split = StoredSplit(folder, name)
        ids = split.stream(0, split.num_tokens)
        members = (ids[begin : begin + 7] for begin in range(0, ids.size, 7))
        assert histogram(lengths_by_end(members, eos_id)) == expected


def test_histogram() -> None:
    bins = histogram([np.array([1, 2, 3, 8]), np.array([9, 15, 16])])
    assert bins == [Bin(1, 1, 1, 1), Bin(2, 3, 2, 5), Bin(4, 7, 0, 0), Bin(8, 15, 3, 32), Bin(16, 31, 1, 16)]
    assert histogram([]) == []
    assert histogram([np.array([2**40 - 1])]) == [Bin(2**39, 2**40 - 1, 1, 2**40 - 1)]


def test_a_document_that_is_missing(folder: Path, command: Command) -> None:
    index = load_index(folder)
    tally = next(iter(index.ledger.values()))
    tally.read += 1
    save_index(index, folder)
    status, _, errors = command("data", "report", folder)
    assert status == 2 and "the ledger accounts for" in errors
