"""Megatron's token files: read, written as its authors write them, and refused if they are damaged."""

import os
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from megatape.data.formats.megatron import Megatron
from tests.helpers.data.token_files import DOCUMENTS, IDS, STREAM, TOKEN_FILES, Import, overwrite
from tests.helpers.processes.command import assert_refused


@pytest.mark.parametrize("name", ["documents", "wide", "sentences"])
@pytest.mark.parametrize("suffix", ["", ".bin", ".idx"], ids=["name", "bin", "idx"])
def test_megatron_is_read_by_any_of_its_names(name: str, suffix: str) -> None:
    path = TOKEN_FILES / "megatron" / f"{name}{suffix}"
    for ids, expected in zip(Megatron().read(path, IDS), DOCUMENTS, strict=True):
        assert np.array_equal(ids, expected)


@pytest.mark.parametrize("name, dtype", [("documents", IDS), ("wide", np.dtype("<u4"))])
def test_megatron_is_written_as_its_authors_write_it(tmp_path: Path, name: str, dtype: np.dtype[Any]) -> None:
    Megatron().write(tmp_path / name, iter(DOCUMENTS), dtype)
    for file in (f"{name}.bin", f"{name}.idx"):
        assert (tmp_path / file).read_bytes() == (TOKEN_FILES / "megatron" / file).read_bytes(), file


class MegatronCase(NamedTuple):
    """Bytes overwritten in a Megatron-LM file, and the message refusing it."""

    file: str
    offset: int
    content: bytes
    message: str


MEGATRON_CASES = [
    MegatronCase("documents.idx", 17, b"\7", "version 1 with ids of type 7: what is read is"),
    MegatronCase("documents.idx", 9, b"\2", "version 2 with ids"),
    MegatronCase("documents.idx", 58, b"\7", "sequence 1 does not begin where the one before it ends"),
    MegatronCase("documents.idx", 34, struct.pack("<i", -1), "sequence 0 does not begin where"),
    MegatronCase("documents.idx", 82, b"\1", "its first document does not begin with the first sequence"),
    MegatronCase("documents.idx", 114, b"\3", "its documents end after 3 of 4 sequences"),
    # The second document is empty, and the third has its sequence too.
    MegatronCase("documents.idx", 98, b"\1", "document 2 has the end token of"),
    MegatronCase("documents.idx", 98, b"\0", "a document ends with sequence 0 of 4, after 1"),
    MegatronCase("documents.bin", 2, b"\2\0", "document 0 has the end token of"),
    MegatronCase("documents.bin", 2, b"\x40\1", "documents: token ids 1..320, but"),
    MegatronCase("wide.bin", 4, b"\xff\xff\xff\xff", "wide: token ids -1..7, but"),
]


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    """Folder with copies of Megatron-LM's files."""
    return shutil.copytree(TOKEN_FILES / "megatron", tmp_path / "megatron")


@pytest.mark.parametrize(("file", "offset", "content", "message"), MEGATRON_CASES)
def test_overwritten_megatron_files_are_refused(
    import_data: Import, megatron: Path, file: str, offset: int, content: bytes, message: str
) -> None:
    path = megatron / file
    overwrite(path, offset, content)
    assert_refused(import_data("megatron", path.with_suffix("")), message)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("documents.bin", STREAM.astype(IDS).tobytes()[:-2], "documents.bin: truncated, documents.idx has"),
        ("documents.bin", STREAM.astype(IDS).tobytes() + b"\0\0", "its documents end after 4 of 4 sequences"),
        ("documents.idx", b"TNTIDX\0\0" + bytes(30), "documents.idx: no index of Megatron-LM"),
        ("documents.idx", b"MMIDIDX", "documents.idx: no index of Megatron-LM"),
    ],
    ids=["short ids", "long ids", "other index", "short index"],
)
def test_replaced_megatron_files_are_refused(
    import_data: Import, megatron: Path, file: str, content: bytes, message: str
) -> None:
    (megatron / file).write_bytes(content)
    assert_refused(import_data("megatron", megatron / "documents"), message)


def test_a_truncated_megatron_index_is_refused(import_data: Import, megatron: Path) -> None:
    path = megatron / "documents.idx"
    path.write_bytes(path.read_bytes()[:-8])
    assert_refused(import_data("megatron", megatron / "documents"), "documents.idx: corrupted: 114 bytes, 4 sequ")


def test_a_missing_megatron_index_is_refused(import_data: Import, megatron: Path) -> None:
    (megatron / "documents.idx").unlink()
    assert_refused(import_data("megatron", megatron / "documents"), "documents.idx")


@pytest.mark.parametrize("file", ["documents.idx", "documents.bin"])
def test_a_pipe_in_place_of_a_megatron_file_is_refused(import_data: Import, megatron: Path, file: str) -> None:
    """Reading a pipe would wait forever."""
    (megatron / file).unlink()
    os.mkfifo(megatron / file)
    assert_refused(import_data("megatron", megatron / "documents"), f"{file}: a pipe or a device, not a file")


def test_an_index_that_promises_gigabytes_needs_little_memory(tmp_path: Path) -> None:
    """Memory is allocated for the ids in the file, not for those announced by the index."""
    num_sequences = 8
    length = 2**31 - 1
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, num_sequences, 2)
    lengths = np.full(num_sequences, length, "<i4")
    offsets = np.arange(num_sequences, dtype="<i8") * 2 * length
    document_ends = np.array([0, num_sequences], "<i8")
    parts = [header, lengths.tobytes(), offsets.tobytes(), document_ends.tobytes()]
    (tmp_path / "a.idx").write_bytes(b"".join(parts))
    (tmp_path / "a.bin").write_bytes(bytes(100))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="a.bin: truncated, a.idx has 34,359,738,352 bytes"):
            list(Megatron().read(tmp_path / "a", IDS))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24
