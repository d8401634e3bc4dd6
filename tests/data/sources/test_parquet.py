"""Parquet files: row groups, columns of text, and damaged or malicious files."""

from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_unit
from megatape.data.sources.source import Source
from megatape.errors import UserError
from tests.helpers.checks.slow import slow_but
from tests.helpers.data.sources import read, write_parquet

TEXTS = [f"Document {number} ✓\n" + "the fox " * (number % 5) for number in range(50)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the file that a test writes."""
    return tmp_path / "a.parquet"


def repeated_value(text: str) -> pa.DictionaryArray:
    """Return a column of 64 rows that all share one value."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array([text]))


@pytest.mark.parametrize("unit_bytes", [2**20, 500, 100])
def test_row_groups_are_distributed_over_units(path: Path, unit_bytes: int) -> None:
    """Every row is read once and in order, with its number in the file and its URL."""
    write_parquet(path, list(TEXTS))
    file_bytes = path.stat().st_size
    source = Source("parquet", (str(path.parent),), unit_bytes=unit_bytes)
    units = source.units()
    counts = CorpusCounts()

    documents = []
    for unit in units:
        documents += list(read_unit(source, unit, counts))

    assert len(units) == -(-file_bytes // unit_bytes)
    assert [document.text for document in documents] == TEXTS
    assert [document.location for document in documents] == [f"{path}:row {number}" for number in range(50)]
    assert documents[9].url == "http://host/9"
    assert 0 < counts.read_bytes <= file_bytes


@pytest.mark.parametrize("kind", [pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_columns_that_hold_text(path: Path, kind: pa.DataType) -> None:
    write_parquet(path, [""] * 50, body=pa.array(TEXTS).cast(kind))

    assert read("parquet", path, text_field="body")[0] == TEXTS


def test_empty_and_long_rows_are_counted(path: Path) -> None:
    write_parquet(path, ["zero", None, "", "three" * 100])

    texts, counts = read("parquet", path, max_record_bytes=400)

    assert texts == ["zero"]
    assert counts.first_too_long == f"{path}:row 3"
    assert counts.total.dropped == {"empty documents": 2, "records too long to read": 1}


def test_rows_that_are_not_utf8_are_bad_records(path: Path) -> None:
    write_parquet(path, ["x"] * 2, body=pa.array([b"one", b"\xff"]))

    texts, counts = read("parquet", path, text_field="body")

    assert texts == ["one"]
    assert counts.bad_examples == [f"{path}:row 1: invalid UTF-8 (invalid start byte at byte 0)"]


@pytest.mark.parametrize("field", ["labels", "none"])
def test_a_column_without_text_is_refused(path: Path, field: str) -> None:
    """The column has numbers, or is missing. The error lists all columns."""
    write_parquet(path, ["x"] * 2, body=pa.array([b"one", b"two"]), labels=pa.array([1, 2]))

    message = rf"{path}: the file has no column `{field}` of text, only text, url, n, body, labels:"
    with pytest.raises(UserError, match=message):
        read("parquet", path, text_field=field)


@pytest.mark.parametrize("damage", ["truncated", "changed", "cut in the middle", "no Parquet file"])
def test_corrupted_files_are_refused(path: Path, damage: str) -> None:
    table = pa.table({"text": [f"{number:0100}" for number in range(999)]})
    parquet.write_table(table, path, write_page_checksum=True)
    content = path.read_bytes()
    damaged = {
        "truncated": content[:-50],
        "changed": content[:2000] + b"\xff" + content[2001:],
        "cut in the middle": b"PAR1" + content[: len(content) // 2],
        "no Parquet file": b"{}\n" * 99,
    }
    path.write_bytes(damaged[damage])

    with pytest.raises(ValueError, match=r"a.parquet: corrupted Parquet file \(.*again"):
        read("parquet", path)


def test_a_file_of_another_schema_is_refused_whatever_its_share(tmp_path: Path) -> None:
    """Rows of such a file are not bad records, of which one in a hundred is accepted. A file without rows loses nothing."""
    write_parquet(tmp_path / "a.parquet", ["good"] * 5000)
    parquet.write_table(pa.table({"content": pa.array([], pa.string())}), tmp_path / "b.parquet")
    assert read("parquet", tmp_path)[1].total.num_kept == 5000

    parquet.write_table(pa.table({"content": ["lost"], "id": [1]}), tmp_path / "c.parquet")
    message = rf"^{tmp_path}/c.parquet: the file has no column `text` of text, only content, id: leave"
    with pytest.raises(UserError, match=message):
        read("parquet", tmp_path)


@pytest.mark.parametrize("use_dictionary", slow_but([True], [True, False]))
def test_a_decompression_bomb_is_refused_by_its_footer(path: Path, use_dictionary: bool) -> None:
    """3.5 KB took 3 GB: all rows of a dictionary are the same 100 MB, or a page unpacks to as much."""
    column = pa.array(["a" * 100_000_000])
    if use_dictionary:
        column = repeated_value("a" * 100_000_000)
    parquet.write_table(
        pa.table({"text": column}),
        path,
        compression="zstd",
        use_dictionary=use_dictionary,
        dictionary_pagesize_limit=2**30,
    )

    message = rf"{path}:row 0: a decompression bomb: \d,\d+ bytes of column `text` become 100,000,"
    with pytest.raises(UserError, match=message):
        read("parquet", path)


def test_a_decompression_bomb_in_a_struct_is_refused(path: Path) -> None:
    """Structs are checked before they are unpacked."""
    structs = pa.StructArray.from_arrays([repeated_value("a" * 100_000_000)], ["license"])
    table = pa.table({"text": ["text"] * 64, "metadata": structs})
    parquet.write_table(table, path, compression="zstd", dictionary_pagesize_limit=2**30)

    message = r"a decompression bomb: \d,\d+ bytes of column `metadata.license` become 100,000,"
    with pytest.raises(UserError, match=message):
        read("parquet", path, fields=("metadata",))


def test_fields_of_structs_are_named_by_their_path(path: Path) -> None:
    """The name of a column may contain dots as well."""
    metadata = {"license": "mit", "more": [1]}
    table = pa.table(
        {
            "text": ["a", "b"],
            "metadata": [metadata, None],
            "other.license": ["cc0", None],
            "url": [{"host": "h"}, {"host": "h"}],
        }
    )
    parquet.write_table(table, path)
    names = ("metadata", "metadata.license", "other.license", "url.host", "none.license")
    source = Source("parquet", (str(path),), fields=names)
    (unit,) = source.units()

    first, second = source.reader.read(source, unit, CorpusCounts())

    assert list(first.fields.values()) == [metadata, "mit", "cc0", "h", None]
    assert list(second.fields.values()) == [None, None, None, "h", None]


def test_dense_columns_are_read(path: Path) -> None:
    """A column that compresses better than text is read if it fits into memory."""
    text = "a" * 300_000
    parquet.write_table(pa.table({"text": repeated_value(text)}), path, compression="zstd")

    assert read("parquet", path)[0] == [text] * 64


# Start of a column's description in a Parquet file's footer, with page statistics as for an optional column
OPTIONAL = b"%\x02\x18\x04text"
REQUIRED = b"%\x00\x18\x04text"


def test_a_parquet_file_that_ends_its_process(tmp_path: Path) -> None:
    """pyarrow aborts if a footer contradicts itself. The file is named, and other files are read before and after."""
    good = tmp_path / "0.parquet"
    bad = tmp_path / "1.parquet"
    write_parquet(good, ["good"])
    parquet.write_table(pa.table({"text": ["bad"]}), bad)
    content = bad.read_bytes()
    assert content.count(OPTIONAL) == 1
    bad.write_bytes(content.replace(OPTIONAL, REQUIRED))

    for _ in range(2):
        assert read("parquet", good)[0] == ["good"]
        with pytest.raises(UserError, match=f"{bad}: cannot be read: the process reading it ended by SIGABRT: a file is"):
            read("parquet", tmp_path)


def test_reading_a_part_of_a_source_leaves_no_process(path: Path) -> None:
    """A process left behind would wait forever to send the other documents."""
    write_parquet(path, ["x" * 100_000] * 100)
    before = psutil.Process().children(recursive=True)

    texts, _ = read("parquet", path, max_documents=1)

    assert texts == ["x" * 100_000]
    after = psutil.Process().children(recursive=True)
    assert [process for process in after if process not in before] == []
