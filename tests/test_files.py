"""JSON of unknown origin, and outputs that never replace what somebody else made."""

import os
from pathlib import Path

import pytest

from megatape.files import MAX_DEPTH, new_folder, parse_json, read_json


def test_deep_json_is_refused() -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        inside = opened * MAX_DEPTH + "1" + closed * MAX_DEPTH
        assert parse_json(inside)
        for text in (f"{opened}{inside}{closed}", opened * 100_000 + "1" + closed * 100_000):
            with pytest.raises(ValueError, match="nested more than 64 levels deep"):
                parse_json(text)


def test_large_json_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"[" + b" " * 98 + b"]")
    assert read_json(path, max_bytes=100) == []
    with pytest.raises(ValueError, match="larger than 99 bytes"):
        read_json(path, max_bytes=99)
    with path.open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="larger than 67,108,864 bytes"):
        read_json(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ValueError, match="no regular file"):
        read_json(tmp_path / "pipe.json")


def test_new_folder_appears_when_complete(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    with new_folder(output) as folder:
        (folder / "file").touch()
        assert not output.exists() and folder.parent == output.parent
    assert [path.name for path in output.iterdir()] == ["file"]
    with pytest.raises(FileExistsError, match="out exists"), new_folder(output):
        raise AssertionError("not reached")


def test_new_folder_leaves_nothing_of_a_failure_and_all_of_others(tmp_path: Path) -> None:
    output = tmp_path / "out"
    (tmp_path / "out.tmp").mkdir()
    with pytest.raises(KeyboardInterrupt), new_folder(output):
        raise KeyboardInterrupt
    with pytest.raises(FileExistsError, match="out exists"), new_folder(output) as folder:
        (folder / "file").touch()
        output.mkdir()  # another process's, in the meantime
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tmp"] and not list(output.iterdir())
