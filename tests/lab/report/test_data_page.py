"""megatape data report: the text and the page describe the documents written to a data directory."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.contents import Bin, histogram, read_contents
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.tables.document_tables import lengths_by_end
from megatape.data.sources.source import Source
from megatape.data.tokenizers.files import load_tokenizer
from tests.helpers.processes.command import Command
from tests.helpers.runs.report_folders import HOSTILE


def input_lines(name: str) -> Iterator[str]:
    """Yield an input: 6 documents with HTML, 9 short ones, one that is in both inputs, an empty one, and a malformed line."""
    for number in range(6):
        foxes = "fox " * 2**number
        yield json.dumps({"text": f"{HOSTILE} {name} {foxes}", "url": HOSTILE})
    for number in range(9):
        yield json.dumps({"text": f"{name} {number} again"})
    yield json.dumps({"text": "in both"})
    yield json.dumps({"text": " "})
    yield "{"


@pytest.fixture
def folder(data_directory: Path, tmp_path: Path) -> Path:
    """Data directory with two inputs."""
    files = []
    for name in ("web", "books"):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(f"{line}\n" for line in input_lines(name)))
        files.append(str(file))
    tokenizer = load_tokenizer(data_directory / "tokenizer.model")
    source = Source("jsonl", tuple(files), max_bad_fraction=1.0)
    prepare(PreparationOptions(source, 0.2, tokenizer, 0), tmp_path / "data")
    return tmp_path / "data"


class Report(NamedTuple):
    """Report as text and as HTML, without places where a name may be broken."""

    text: str
    page: str


@pytest.fixture
def report(folder: Path, command: Command, tmp_path: Path) -> Report:
    status, text, errors = command("data", "report", folder, "--output", tmp_path / "out")
    assert status == 0, errors
    page = (tmp_path / "out" / "index.html").read_text()
    return Report(text, page.replace("<wbr>", ""))


def test_text_counts_documents_of_inputs(report: Report, tmp_path: Path) -> None:
    header = ["input", "read", "written", "empty documents", "bad records", "duplicates", "tokens"]
    rows = [
        [str(tmp_path / "web.jsonl"), "18", "16", "1", "1", "0"],
        [str(tmp_path / "books.jsonl"), "18", "15", "1", "1", "1"],
        ["all", "36", "31", "2", "2", "1"],
    ]
    for cells in (header, *rows):
        line = " +".join(re.escape(cell) for cell in cells)
        assert re.search(f"^{line} ", report.text, re.MULTILINE), cells


def test_page_counts_documents_of_inputs(report: Report, tmp_path: Path) -> None:
    rows = {}
    for name, cells in re.findall(r'row">(.*?)</th>(.*)</tr>', report.page):
        rows[name] = re.findall(r"<td>(.*?)</td>", cells)

    assert rows[str(tmp_path / "web.jsonl")][:2] == ["18", "16"]
    assert rows[str(tmp_path / "books.jsonl")][:2] == ["18", "15"]
    assert rows["all"][:2] == ["36", "31"]


def test_documents_that_are_html_are_text(report: Report) -> None:
    assert HOSTILE in report.text
    assert HOSTILE not in report.page
    assert "&lt;img src=x" in report.page
    assert "<script" not in report.page
    assert "http" not in report.page.replace("http-equiv", "")


def test_samples_and_lengths_are_shown(report: Report, folder: Path) -> None:
    samples = read_contents(folder).samples

    assert len(samples) >= 4
    assert report.page.count("<pre>") == len(samples)
    for shown in report:
        assert "█" * 30 in shown
        assert "share of all tokens" in shown


def test_existing_output_is_refused(report: Report, folder: Path, command: Command, tmp_path: Path) -> None:
    status, _, errors = command("data", "report", folder, "--output", tmp_path / "out")

    assert status == 2
    assert "out" in errors


def test_lengths_count_all_documents_and_tokens(folder: Path) -> None:
    contents = read_contents(folder)

    for name, split in contents.index.splits.items():
        assert sum(bin.documents for bin in contents.lengths[name]) == split.documents
        assert sum(bin.tokens for bin in contents.lengths[name]) == split.tokens


def test_lengths_without_document_tables(folder: Path) -> None:
    """Folders of earlier versions have no tables and no ledger, so lengths are counted from the tokens."""
    contents = read_contents(folder)
    save_index(replace(load_index(folder), document_tables={}, ledger={}), folder)

    earlier = read_contents(folder)

    assert earlier.lengths == contents.lengths
    assert earlier.total is None
    assert earlier.samples
    for sample in earlier.samples:
        assert sample.text
        assert not sample.location


def test_documents_that_cross_members(folder: Path) -> None:
    """A document may have many members of 7 tokens, and some members have no end."""
    eos_id = load_index(folder).tokenizer.eos_id
    for name, expected in read_contents(folder).lengths.items():
        split = StoredSplit(folder, name)
        ids = split.stream(0, split.num_tokens)
        members = [ids[begin : begin + 7] for begin in range(0, ids.size, 7)]

        assert histogram(lengths_by_end(members, eos_id)) == expected


def test_bins_of_a_histogram_double() -> None:
    bins = histogram([np.array([1, 2, 3, 8]), np.array([9, 15, 16])])

    assert bins == [Bin(1, 1, 1, 1), Bin(2, 3, 2, 5), Bin(4, 7, 0, 0), Bin(8, 15, 3, 32), Bin(16, 31, 1, 16)]


def test_empty_histogram() -> None:
    assert histogram([]) == []


def test_histogram_of_a_huge_document() -> None:
    assert histogram([np.array([2**40 - 1])]) == [Bin(2**39, 2**40 - 1, 1, 2**40 - 1)]


def test_missing_document_is_refused(folder: Path, command: Command) -> None:
    index = load_index(folder)
    tally = next(iter(index.ledger.values()))
    tally.read += 1
    save_index(index, folder)

    status, _, errors = command("data", "report", folder)

    assert status == 2
    assert "the ledger accounts for" in errors
