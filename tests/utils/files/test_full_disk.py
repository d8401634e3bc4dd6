"""A full disk: the error names the file."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from megatape.checkpoint.format.hashed_files import write_file
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.files import link_file
from megatape.utils.files.json_lines import append_lines


def no_links(source: Path, target: Path) -> None:
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "File exists", str(target))
    raise OSError(errno.EXDEV, "Invalid cross-device link")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports the failed disk call, but not the file."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "given").write_bytes(b"content")
    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(os, "fsync", full)
    writes: dict[str, Callable[[Path], object]] = {
        "written": lambda path: write_atomically(path, b"content"),
        "appended": lambda path: append_lines(path, [{"number": 1}]),
        "copied": lambda path: link_file(tmp_path / "given", path),
        "checkpoint": lambda path: write_file(path, [b"content"]),
    }
    for name, write in writes.items():
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / name}'"):
            write(tmp_path / name)
