"""Flat files: a stream of ids without an index."""

from pathlib import Path

import numpy as np
import pytest

from megatape.data.formats.flat import Flat
from tests.helpers.data.token_files import DOCUMENTS, IDS, STREAM, Import
from tests.helpers.processes.command import assert_refused


def test_a_flat_file_is_the_stream_of_ids(tmp_path: Path) -> None:
    Flat().write(tmp_path / "flat", iter(DOCUMENTS), IDS)
    assert np.array_equal(np.memmap(tmp_path / "flat.bin", np.uint16, "r"), STREAM)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (STREAM.astype(IDS).tobytes()[:-1], "a.bin: 765 bytes are no whole number of uint16 ids"),
        (STREAM[:-1].astype(IDS).tobytes() + b"\x40\1", "a.bin: token ids 1..320, but"),
        (np.full(1000, 7, IDS).tobytes(), "a.bin: 1,000 tokens without the end token, 2: give the tokenizer"),
        (b"", "the train split got none of the 0 documents: change --validation-share"),
    ],
    ids=["odd bytes", "unknown id", "no end token", "empty"],
)
def test_unfit_flat_files_are_refused(import_data: Import, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    assert_refused(import_data("flat", path), message)


def test_a_flat_file_of_32_bit_ids_is_noted(import_data: Import, tmp_path: Path) -> None:
    """Reading the file as 16-bit ids makes every second id 0, <unk>, so documents do not start with the beginning token."""
    path = tmp_path / "a.bin"
    path.write_bytes(STREAM.astype("<u4").tobytes())
    result = import_data("flat", path)
    assert result.status == 0, result.errors
    assert "documents do not begin with token 1" in result.output


def test_a_missing_flat_file_is_refused(import_data: Import, tmp_path: Path) -> None:
    assert_refused(import_data("flat", tmp_path / "missing.bin"), "missing.bin")
