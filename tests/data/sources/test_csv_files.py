"""CSV and TSV files: quoting, columns, bad rows, and files that do not end."""

import gzip
from pathlib import Path
from typing import NamedTuple

import pytest

from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_unit
from megatape.data.sources.source import Source
from megatape.errors import UserError
from tests.helpers.data.sources import read

TEXTS = ["plain", 'with "quotes", commas\nand lines\r\n', "", "täb\there", "nul\0"]


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "A.CSV", "a.csv.gz", "a.tsv.gz"])
def test_values_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    separator = ","
    if ".tsv" in name:
        separator = "\t"
    rows = [separator.join((f"https://a.org/{number}", quoted(text))) for number, text in enumerate(TEXTS)]
    content = "\ufeff" + "\r\n".join([separator.join(("url", "text")), *rows, ""])
    encoded = content.encode()
    if name.endswith(".gz"):
        encoded = gzip.compress(encoded)
    (tmp_path / name).write_bytes(encoded)
    source = Source("csv", (str(tmp_path),), fields=("url",))
    (unit,) = source.units()
    counts = CorpusCounts()

    documents = list(read_unit(source, unit, counts))

    assert [document.text for document in documents] == [text for text in TEXTS if text]
    assert documents[0].location == f"{tmp_path / name}:row 1"
    assert [document.url for document in documents] == [f"https://a.org/{number}" for number in (0, 1, 3, 4)]
    assert documents[1].fields == {"url": "https://a.org/1"}
    assert counts.bad == 0
    assert counts.read_bytes == len(encoded)


class BadRow(NamedTuple):
    """A row, and the start of its reason."""

    row: bytes
    reason: str


BAD_ROWS = [
    BadRow(b"1", "1 values for 2 columns"),
    BadRow(b"1,2,3", "3 values for 2 columns"),
    BadRow(b'1,"2"3', "malformed CSV"),
    BadRow(b"1,\xff", "invalid UTF-8"),
]


@pytest.mark.parametrize("bad", BAD_ROWS, ids=lambda bad: bad.reason)
def test_a_bad_row_costs_that_row(tmp_path: Path, bad: BadRow) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,first\n" + bad.row + b"\n3,last\n")

    texts, counts = read("csv", tmp_path, max_bad_fraction=1)

    assert texts == ["first", "last"]
    assert counts.bad == 1
    assert counts.bad_examples[0].startswith(f"{tmp_path}/a.csv:row 2: {bad.reason}")


def test_a_long_text_costs_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"text\nfirst\n{'x' * 101}\n{'y' * 100}\n")

    texts, counts = read("csv", tmp_path, max_record_bytes=100)

    assert texts == ["first", "y" * 100]
    assert counts.first_too_long == f"{tmp_path}/a.csv:row 2"


@pytest.mark.parametrize("num_rows", [3, 10_000])
def test_a_missing_quotation_mark_ends_the_command(tmp_path: Path, num_rows: int) -> None:
    """All rows behind it would be lost as one bad record, or fill the memory."""
    rows = "".join(f"text {number}\n" for number in range(num_rows))
    (tmp_path / "a.csv").write_text(f'text\nfirst\n"second\n{rows}')

    with pytest.raises(UserError, match="a.csv:row 2: it does not end .*: a quotation mark is missing"):
        read("csv", tmp_path, max_record_bytes=1000)


@pytest.mark.parametrize("columns", ["", "body", "text,text", "Text"])
def test_a_file_without_one_column_of_text_is_refused(tmp_path: Path, columns: str) -> None:
    (tmp_path / "a.csv").write_text(f"id,{columns}\n1,2\n")

    with pytest.raises(UserError, match="a.csv: the first row does not name one column `text` of text, but"):
        read("csv", tmp_path)
