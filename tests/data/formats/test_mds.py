"""MDS shards: read, written as their authors write them, and refused if they are damaged."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from megatape.data.formats.mds import Mds
from tests.helpers.data.json_edits import set_file_entry
from tests.helpers.data.token_files import DOCUMENTS, IDS, STREAM, TOKEN_FILES, Import, overwrite
from tests.helpers.processes.command import assert_refused


@pytest.mark.parametrize(
    ("name", "num_pieces", "num_tokens"),
    [("documents", 4, STREAM.size), ("foundry", 3, 300), ("other", 4, STREAM.size)],
)
def test_mds_is_read(name: str, num_pieces: int, num_tokens: int) -> None:
    """llm-foundry drops the last 83 tokens, too few for filling a sample."""
    pieces = list(Mds().read(TOKEN_FILES / "mds" / name, IDS))
    assert len(pieces) == num_pieces
    assert np.array_equal(np.concatenate(pieces), STREAM[:num_tokens])


def test_mds_is_written_as_its_authors_write_it(tmp_path: Path) -> None:
    Mds().write(tmp_path / "mds", iter(DOCUMENTS), IDS)
    for expected in (TOKEN_FILES / "mds/documents").iterdir():
        assert (tmp_path / "mds" / expected.name).read_bytes() == expected.read_bytes(), expected.name


class MdsCase(NamedTuple):
    """A changed entry in an MDS data set's index, and the message refusing it."""

    name: str
    entry: str
    value: Any
    message: str


MDS_CASES = [
    MdsCase("documents", "version", 1, "version 1, not 2"),
    MdsCase("documents", "shards.0.format", "json", "format json with columns"),
    MdsCase("documents", "shards.0.column_names", ["text"], "read is mds with tokens or"),
    MdsCase("documents", "shards.0.column_encodings", ["pkl"], "its ids are pkl: what is"),
    MdsCase("documents", "shards.0.column_encodings", [None], "column_encodings.0: must"),
    MdsCase("documents", "shards.0.column_encodings", ["ndarray:float32"], "ids are ndarray:float32"),
    MdsCase("documents", "shards.0.samples", 2**40, "shards.0.samples: must be less than or equal to"),
    MdsCase("documents", "shards.0.samples", 5, "corrupted (its samples are not where"),
    MdsCase("documents", "shards.0.raw_data.hashes", [], "raw_data.hashes: must"),
    MdsCase("documents", "shards.0.raw_data.basename", "..", "'..': not a plain file name"),
    MdsCase("documents", "shards.0.raw_data.basename", "../x", "'../x': not a plain file name"),
    MdsCase("other", "shards.0.compression", "br", "compression br: what is read is zstd, gz"),
]


def copy_mds(name: str, tmp_path: Path) -> Path:
    return shutil.copytree(TOKEN_FILES / "mds" / name, tmp_path / "mds")


@pytest.mark.parametrize(("name", "entry", "value", "message"), MDS_CASES)
def test_mds_with_a_changed_index_is_refused(
    import_data: Import, tmp_path: Path, name: str, entry: str, value: Any, message: str
) -> None:
    folder = copy_mds(name, tmp_path)
    set_file_entry(folder / "index.json", entry, value)
    assert_refused(import_data("mds", folder), message)


@pytest.mark.parametrize(
    ("name", "num_bytes", "message"),
    [
        ("documents", 8, "shard.00000.mds: corrupted"),  # Cut at the beginning of its first sample
        ("documents", 22, "shard.00000.mds: corrupted ("),
        ("documents", 900, "shard.00000.mds: corrupted (truncated)"),
        ("foundry", 200, "shard.00000.mds.zstd: corrupted ("),
    ],
)
def test_a_truncated_mds_shard_is_refused(import_data: Import, tmp_path: Path, name: str, num_bytes: int, message: str) -> None:
    """The index agrees with the truncated shard."""
    folder = copy_mds(name, tmp_path)
    path = next(folder.glob("shard.00000.*"))
    path.write_bytes(path.read_bytes()[:num_bytes])
    section = "shards.0.zip_data"
    if path.suffix == ".mds":
        section = "shards.0.raw_data"
    set_file_entry(folder / "index.json", f"{section}.bytes", num_bytes)
    set_file_entry(folder / "index.json", f"{section}.hashes", {})
    assert_refused(import_data("mds", folder), message)


def test_a_changed_mds_shard_is_refused(import_data: Import, tmp_path: Path) -> None:
    folder = copy_mds("documents", tmp_path)
    overwrite(folder / "shard.00000.mds", 500, b"xx")
    assert_refused(import_data("mds", folder), "corrupted, sha256 is")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("index.json", "index.json: not found: give the folder of one split"),
        ("shard.00000.mds", "shard.00000.mds: not found, index.json lists it"),
    ],
)
def test_a_missing_mds_file_is_refused(import_data: Import, tmp_path: Path, file: str, message: str) -> None:
    folder = copy_mds("documents", tmp_path)
    (folder / file).unlink()
    assert_refused(import_data("mds", folder), message)


def test_an_mds_index_that_is_no_object_is_refused(import_data: Import, tmp_path: Path) -> None:
    folder = copy_mds("documents", tmp_path)
    (folder / "index.json").write_text("[]")
    assert_refused(import_data("mds", folder), "index.json: no index of MosaicML streaming")
