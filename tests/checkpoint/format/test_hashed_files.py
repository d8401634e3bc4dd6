"""Files with a recorded size and hash. tests/checkpoint/format/test_tensors.py alters one while it is written."""

from pathlib import Path

import pytest

from megatape.checkpoint.format.hashed_files import hash_file, write_file


def test_a_written_file_has_the_record_of_the_stored_one(tmp_path: Path) -> None:
    record = write_file(tmp_path / "a", [b"fir", memoryview(b"st")])
    assert record == hash_file(tmp_path / "a")
    assert record.bytes == 5


def test_no_file_is_written_twice(tmp_path: Path) -> None:
    """A tokenizer's file cannot replace weights written by the same save."""
    record = write_file(tmp_path / "a", [b"first"])
    with pytest.raises(FileExistsError, match="a exists already"):
        write_file(tmp_path / "a", [b"other"])
    assert hash_file(tmp_path / "a") == record
