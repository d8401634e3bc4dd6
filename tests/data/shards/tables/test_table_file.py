"""Untrusted tables of documents: each fault is an error of one line, and none crashes the process reading the folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import parquet

from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.entries import Index
from megatape.data.shards.hashes import file_sha256
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.tables.document_tables import DocumentTables
from megatape.data.shards.tables.table_file import TableFile
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.processes.command import Command

COLUMNS: dict[str, Any] = {
    "tokens": pa.array([3, 4], pa.int64()),
    "bytes": pa.array([5, 6], pa.int64()),
    "place": pa.array(["a:1", "a:2"]),
    "url": pa.array(["", "http://host"]),
    "hash": pa.array([1, 2**63], pa.uint64()),
    "scores": pa.array(['{"a": 1}', "{}"]),
}
NOT_UTF8 = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())


# Value of a column to remove
REMOVED = None


class ColumnCase(NamedTuple):
    """A changed column, and the message that refuses it."""

    column: str
    values: pa.Array | None
    message: str


REFUSED_COLUMNS = [
    ColumnCase("tokens", REMOVED, "its columns are .*, not tokens, bytes, place, url"),
    ColumnCase("bytes", REMOVED, "its columns are .*, not tokens, bytes, place, url"),
    ColumnCase("place", REMOVED, "its columns are .*, not tokens, bytes, place, url"),
    ColumnCase("url", REMOVED, "its columns are .*, not tokens, bytes, place, url"),
    ColumnCase("more", pa.array([1, 2]), "its columns are .*more, not tokens"),
    ColumnCase("tokens", pa.array([3.0, 4.0]), "column tokens has the type double, not int64"),
    ColumnCase("tokens", pa.array(["3", "4"]), "column tokens has the type string, not int64"),
    ColumnCase("tokens", pa.array([3, 4], pa.uint8()), "column tokens has the type uint8, not int64"),
    ColumnCase("tokens", pa.array([3, None]), "column tokens has nulls"),
    ColumnCase("tokens", pa.array([7, 0]), "column tokens has 0, less than 1"),
    ColumnCase("tokens", pa.array([8, -1]), "column tokens has -1, less than 1"),
    ColumnCase("bytes", pa.array([8, -1]), "column bytes has -1, less than 0"),
    ColumnCase("place", pa.array([1, 2]), "column place has the type int64, not string"),
    ColumnCase("place", pa.array(["a", None]), "column place has nulls"),
    ColumnCase("place", NOT_UTF8, "table of documents .*UTF"),
    ColumnCase("url", pa.array([None, None], pa.null()), "column url has the type null, not string"),
    ColumnCase("url", pa.array([{"a": 1}] * 2), "column url has the type struct<a: int64>, not string"),
    ColumnCase("hash", pa.array([1, -1]), "column hash has the type int64, not uint64"),
    ColumnCase("scores", pa.array(["{}", None]), "column scores has nulls"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of a table, not written yet."""
    return tmp_path / "a.parquet"


@pytest.mark.parametrize("absent", [(), ("scores",), ("hash", "scores")])
def test_tables_of_all_versions_are_read(path: Path, absent: tuple[str, ...]) -> None:
    """Earlier versions had no scores, and the first ones no hashes."""
    columns = {name: values for name, values in COLUMNS.items() if name not in absent}
    parquet.write_table(pa.table(columns), path)
    file = TableFile(path)
    assert file.names == list(columns)
    assert file.num_rows == 2
    assert file.read().to_pydict() == {name: values.to_pylist() for name, values in columns.items()}
    assert [len(batch) for batch in file.iter_batches(1, ["tokens"])] == [1, 1]


@pytest.mark.parametrize(("column", "values", "message"), REFUSED_COLUMNS)
def test_unfit_columns_are_refused(path: Path, column: str, values: pa.Array | None, message: str) -> None:
    columns = COLUMNS | {column: values}
    if values is REMOVED:
        del columns[column]
    parquet.write_table(pa.table(columns), path)
    for columns_read in (None, [column]):
        with pytest.raises(UserError, match=f"^{path}: corrupted.*{message}.*: copy the folder again, or re-run"):
            TableFile(path).read(columns_read)
    with pytest.raises(UserError, match=message):
        list(TableFile(path).iter_batches(10))


def test_a_file_that_is_no_table_is_refused(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(UserError, match="a.parquet: corrupted table of documents .*: copy the folder again"):
        TableFile(path)


def test_a_column_name_that_is_not_utf8_is_refused(path: Path) -> None:
    parquet.write_table(pa.table(COLUMNS), path)
    path.write_bytes(path.read_bytes().replace(b"\x18\x05bytes", b"\x18\x05b\xfftes"))
    with pytest.raises(UserError, match="a.parquet: corrupted table of documents .'utf-8' codec"):
        TableFile(path)


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """A data directory of one unit."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(20):
        (texts / f"{number}.txt").write_text(f"document {number}" * 3)
    prepare(PreparationOptions(Source("text", (str(texts),)), 0.3, tokenizer, 0), tmp_path / "out")
    return tmp_path / "out"


def table_path(folder: Path) -> Path:
    """Return the path of the training split's only table."""
    (table,) = load_index(folder).document_tables["train"]
    return folder / table.file


def sign_table(folder: Path) -> Index:
    """Update the index to the present hash of the training split's table."""
    index = load_index(folder)
    (table,) = index.document_tables["train"]
    signed_table = replace(table, sha256=file_sha256(folder / table.file))
    signed_index = replace(index, document_tables=index.document_tables | {"train": [signed_table]})
    save_index(signed_index, folder)
    return signed_index


@pytest.mark.parametrize("change", ["a document more", "other lengths"])
def test_tables_with_other_documents_than_the_index_are_refused(folder: Path, change: str) -> None:
    path = table_path(folder)
    rows = parquet.read_table(path)
    if change == "other lengths":
        rows = rows.set_column(0, "tokens", pa.array([1] * len(rows), pa.int64()))
    else:
        rows = pa.concat_tables([rows, rows.slice(0, 1)])
    parquet.write_table(rows, path)

    tables = DocumentTables(folder, sign_table(folder), "train")
    message = f"{folder}: corrupted, {path.name} has other documents than the index"
    with pytest.raises(UserError, match=message):
        list(tables.lengths())
    with pytest.raises(UserError, match=message):
        list(tables.each())


def test_commands_read_tables_in_a_child_process(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that fills the memory or crashes pyarrow ends the child process. The command itself never opens it."""
    path = table_path(folder)
    path.write_bytes(path.read_bytes()[:-10] + bytes(10))
    sign_table(folder)
    opened: list[Any] = []
    monkeypatch.setattr(parquet, "ParquetFile", opened.append)

    commands: list[list[object]] = [
        ["data", "where", folder, "--token", 1],
        ["data", "report", folder],
        ["data", "subset", folder, "--output", folder.parent / "subset", "--min-tokens", 1],
        ["prepare", "corpus", "--source", "python", "--dry-run", 1, "--rule", f"distinct:folders={folder}"],
    ]
    for words in commands:
        status, _, errors = command(*words)
        assert status == 2, errors
        assert errors.count("\n") == 1, errors
        assert f"{path}: corrupted table of documents (" in errors
    assert not opened
