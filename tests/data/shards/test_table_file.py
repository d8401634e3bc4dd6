"""Untrusted tables of documents: each fault is an error of one line, and none crashes the process reading the folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.document_tables import DocumentTables
from megatape.data.shards.entries import Index
from megatape.data.shards.hashes import file_sha256
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.table_file import TableFile
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


@pytest.mark.parametrize("absent", [(), ("scores",), ("hash", "scores")])
def test_columns_of_all_versions(tmp_path: Path, absent: tuple[str, ...]) -> None:
    columns = {name: values for name, values in COLUMNS.items() if name not in absent}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    file = TableFile(tmp_path / "a.parquet")
    assert file.read().to_pydict() == {name: values.to_pylist() for name, values in columns.items()}
    assert [len(batch) for batch in file.iter_batches(1, ["tokens"])] == [1, 1]
    assert (file.names, file.num_rows) == (list(columns), 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *[({name: None}, "its columns are .*, not tokens, bytes, place, url") for name in ("tokens", "bytes", "place", "url")],
        ({"more": pa.array([1, 2])}, "its columns are .*more, not tokens"),
        ({"tokens": pa.array([3.0, 4.0])}, "column tokens has the type double, not int64"),
        ({"tokens": pa.array(["3", "4"])}, "column tokens has the type string, not int64"),
        ({"tokens": pa.array([3, 4], pa.uint8())}, "column tokens has the type uint8, not int64"),
        ({"tokens": pa.array([3, None])}, "column tokens has nulls"),
        ({"tokens": pa.array([7, 0])}, "column tokens has 0, less than 1"),
        ({"tokens": pa.array([8, -1])}, "column tokens has -1, less than 1"),
        ({"bytes": pa.array([8, -1])}, "column bytes has -1, less than 0"),
        ({"place": pa.array([1, 2])}, "column place has the type int64, not string"),
        ({"place": pa.array(["a", None])}, "column place has nulls"),
        ({"url": pa.array([None, None], pa.null())}, "column url has the type null, not string"),
        ({"url": pa.array([{"a": 1}] * 2)}, "column url has the type struct<a: int64>, not string"),
        ({"hash": pa.array([1, -1])}, "column hash has the type int64, not uint64"),
        ({"scores": pa.array(["{}", None])}, "column scores has nulls"),
        ({"place": NOT_UTF8}, "table of documents .*UTF"),
    ],
)
def test_columns_that_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    columns = {name: values for name, values in (COLUMNS | changes).items() if values is not None}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    for columns_read in (None, list(changes)):
        with pytest.raises(UserError, match=f"^{tmp_path}/a.parquet: corrupted.*{message}.*: copy the folder again, or re-run"):
            TableFile(tmp_path / "a.parquet").read(columns_read)
    with pytest.raises(UserError, match=message):
        list(TableFile(tmp_path / "a.parquet").iter_batches(10))


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(UserError, match="a.parquet: corrupted table of documents .*: copy the folder again"):
        TableFile(tmp_path / "a.parquet")


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """Return a data directory of one unit."""
    (tmp_path / "texts").mkdir()
    for number in range(20):
        (tmp_path / f"texts/{number}.txt").write_text(f"document {number}" * 3)
    prepare(PreparationOptions(Source("text", (str(tmp_path / "texts"),)), 0.3, tokenizer, 0), tmp_path / "out")
    return tmp_path / "out"


def signed(folder: Path, content: bytes) -> Index:
    """Replace the table of the training split, and its hash in the index."""
    index = load_index(folder)
    (table,) = index.document_tables["train"]
    (folder / table.file).write_bytes(content)
    tables = index.document_tables | {"train": [replace(table, sha256=file_sha256(folder / table.file))]}
    signed_index = replace(index, document_tables=tables)
    save_index(signed_index, folder)
    return signed_index


@pytest.mark.parametrize("change", ["a document more", "other lengths"])
def test_tables_with_other_documents_than_the_index(folder: Path, change: str) -> None:
    path = folder / load_index(folder).document_tables["train"][0].file
    rows = parquet.read_table(path)
    if change == "other lengths":
        rows = rows.set_column(0, "tokens", pa.array([1] * len(rows), pa.int64()))
    else:
        rows = pa.concat_tables([rows, rows.slice(0, 1)])
    sink = pa.BufferOutputStream()
    parquet.write_table(rows, sink)
    tables = DocumentTables(folder, signed(folder, sink.getvalue().to_pybytes()), "train")
    for read in (tables.lengths, tables.each):
        with pytest.raises(UserError, match=f"{folder}: corrupted, {path.name} has other documents than the index"):
            list(read())


def test_commands_read_tables_in_a_child_process(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that fills the memory or crashes pyarrow ends the child process. The command itself never opens it."""
    path = folder / load_index(folder).document_tables["train"][0].file
    signed(folder, path.read_bytes()[:-10] + bytes(10))
    opened: list[Any] = []
    monkeypatch.setattr(parquet, "ParquetFile", opened.append)
    selected = ["data", "subset", folder, "--output", folder.parent / "subset", "--min-tokens", 1]
    prepared = ["prepare", "corpus", "--source", "python", "--dry-run", 1, "--rule", f"distinct:folders={folder}"]
    for words in (["data", "where", folder, "--token", 1], ["data", "report", folder], selected, prepared):
        status, _, errors = command(*words)
        assert status == 2, errors
        assert errors.count("\n") == 1, errors
        assert f"{path}: corrupted table of documents (" in errors
    assert not opened


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    parquet.write_table(pa.table(COLUMNS), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content.replace(b"\x18\x05bytes", b"\x18\x05b\xfftes"))
    with pytest.raises(UserError, match="a.parquet: corrupted table of documents .'utf-8' codec"):
        TableFile(tmp_path / "a.parquet")
