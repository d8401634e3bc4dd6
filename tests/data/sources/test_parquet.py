"""Parquet files: row groups, columns of text, and faults."""

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


def test_row_groups_are_divided_among_units(tmp_path: Path) -> None:
    """Every row once and in order, with its number in the file and its URL, whatever the size of a unit."""
    path = tmp_path / "a.parquet"
    write_parquet(path, list(TEXTS))
    for size in (2**20, 500, 100):
        source = Source("parquet", (str(tmp_path),), unit_bytes=size)
        counts = CorpusCounts()
        units = source.units()
        assert len(units) == -(-path.stat().st_size // size)
        found = [document for unit in units for document in read_unit(source, unit, counts)]
        assert [document.text for document in found] == TEXTS
        assert [document.place for document in found] == [f"{path}:row {number}" for number in range(50)]
        assert found[9].url == "http://host/9"
        assert 0 < counts.read_bytes <= path.stat().st_size


@pytest.mark.parametrize("kind", [pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_columns_that_hold_text(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(TEXTS).cast(pa.binary()) if kind == pa.binary() else pa.array(TEXTS).cast(kind)
    write_parquet(tmp_path / "a.parquet", [""] * 50, body=column)
    assert read("parquet", tmp_path, text_field="body")[0] == TEXTS


# Beginnings of the description of a column in a footer of Parquet, whose page statistics are for the former.
OPTIONAL = b"%\x02\x18\x04text"
REQUIRED = b"%\x00\x18\x04text"


def test_parquet_files_with_faults(tmp_path: Path) -> None:
    """Rows that are too long or not in UTF-8 and files with another schema are counted. Corrupted files are refused."""
    path = tmp_path / "a.parquet"
    write_parquet(path, ["zero", None, "", "three" * 100])
    texts, counts = read("parquet", path, max_record_bytes=400)
    assert texts == ["zero"] and counts.first_too_long == f"{path}:row 3"
    assert counts.total.dropped == {"empty documents": 2, "records too long to read": 1}
    write_parquet(path, ["x"] * 2, body=pa.array([b"one", b"\xff"]), labels=pa.array([1, 2]))
    texts, counts = read("parquet", path, text_field="body")
    assert texts == ["one"] and counts.bad_examples == [f"{path}:row 1: invalid UTF-8 (invalid start byte at byte 0)"]
    for field in ("labels", "none"):
        with pytest.raises(
            UserError, match=rf"{path}: the file has no column `{field}` of text, only text, url, n, body, labels:"
        ):
            read("parquet", path, text_field=field)
    parquet.write_table(pa.table({"text": [f"{number:0100}" for number in range(999)]}), path, write_page_checksum=True)
    good = path.read_bytes()
    for content in (good[:-50], good[:2000] + b"\xff" + good[2001:], b"PAR1" + good[: len(good) // 2], b"{}\n" * 99):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a.parquet: corrupted Parquet file \(.*again"):
            read("parquet", path)


def test_a_file_of_another_schema_is_named_whatever_its_share(tmp_path: Path) -> None:
    """Its rows are no bad records, of which one in a hundred may be skipped. A file without rows loses nothing."""
    write_parquet(tmp_path / "a.parquet", ["good"] * 5000)
    parquet.write_table(pa.table({"content": pa.array([], pa.string())}), tmp_path / "b.parquet")
    assert read("parquet", tmp_path)[1].total.num_kept == 5000
    parquet.write_table(pa.table({"content": ["lost"], "id": [1]}), tmp_path / "c.parquet")
    with pytest.raises(
        UserError, match=rf"^{tmp_path}/c.parquet: the file has no column `text` of text, only content, id: leave"
    ):
        read("parquet", tmp_path)


@pytest.mark.parametrize("dictionary", slow_but([True], [True, False]))
def test_a_decompression_bomb_is_refused_by_its_footer(tmp_path: Path, dictionary: bool) -> None:
    """3.5 KB took 3 GB: all rows of a dictionary are the same 100 MB; or a page unpacks to as much."""
    path = tmp_path / "a.parquet"
    values = pa.array(["a" * 100_000_000])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), values) if dictionary else values
    parquet.write_table(
        pa.table({"text": column}), path, compression="zstd", use_dictionary=dictionary, dictionary_pagesize_limit=2**30
    )
    with pytest.raises(UserError, match=rf"{path}:row 0: a decompression bomb: \d,\d+ bytes of column `text` become 100,000,"):
        read("parquet", path)


def test_fields_of_structs(tmp_path: Path) -> None:
    """Fields are named by their path; a column name may contain dots as well. Structs are checked before they are unpacked."""
    path = tmp_path / "a.parquet"
    values = {"metadata": [{"license": "mit", "more": [1]}, None], "other.license": ["cc0", None], "url": [{"host": "h"}] * 2}
    parquet.write_table(pa.table({"text": ["a", "b"], **values}), path)
    names = ("metadata", "metadata.license", "other.license", "url.host", "none.license")
    source = Source("parquet", (str(path),), fields=names)
    (unit,) = source.units()
    found = [document.fields for document in source.reader.read(source, unit, CorpusCounts())]
    assert [list(fields.values()) for fields in found] == [
        [values["metadata"][0], "mit", "cc0", "h", None],
        [None, None, None, "h", None],
    ]
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array(["a" * 100_000_000]))
    table = pa.table({"text": ["text"] * 64, "metadata": pa.StructArray.from_arrays([column], ["license"])})
    parquet.write_table(table, path, compression="zstd", dictionary_pagesize_limit=2**30)
    with pytest.raises(UserError, match=r"a decompression bomb: \d,\d+ bytes of column `metadata.license` become 100,000,"):
        read("parquet", path, fields=("metadata",))


def test_dense_columns_are_read(tmp_path: Path) -> None:
    """Text that packs better than text does is not refused while it fits into the memory."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array(["a" * 300_000]))
    parquet.write_table(pa.table({"text": column}), tmp_path / "a.parquet", compression="zstd")
    assert read("parquet", tmp_path)[0] == ["a" * 300_000] * 64


def test_a_parquet_file_that_ends_its_process(tmp_path: Path) -> None:
    """pyarrow aborts where a footer contradicts itself: the file is named, and others are read as before and after."""
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


def test_documents_that_are_not_wanted_end_their_process(tmp_path: Path) -> None:
    """A source that is left before its end leaves no process that waits to send the rest."""
    write_parquet(tmp_path / "a.parquet", ["x" * 100_000] * 100)
    before = psutil.Process().children(recursive=True)
    assert read("parquet", tmp_path, max_documents=1)[0] == ["x" * 100_000]
    assert all(child in before for child in psutil.Process().children(recursive=True))
