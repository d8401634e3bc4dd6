"""Outputs are complete or absent, and keep mode and owner."""

import errno
import os
from pathlib import Path

import pytest

from megatape.utils.files.atomic import new_folder, rename, write_atomically


def test_new_folder_appears_when_complete(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    with new_folder(output) as folder:
        (folder / "file").touch()
        assert not output.exists()
        assert folder.parent == output.parent
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
    with pytest.raises(OSError, match="No space left on device: '.*full'"), new_folder(tmp_path / "full"):
        raise OSError(errno.ENOSPC, "No space left on device")
    # An error of a source is not one of the new folder, so its message does not name the folder.
    with pytest.raises(OSError, match="Connection reset by peer$"), new_folder(tmp_path / "full"):
        raise OSError(errno.ECONNRESET, "Connection reset by peer")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tmp"]
    assert not list(output.iterdir())


def test_a_rename_that_was_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of a file server may lose the answer and repeat the request, which then finds no file."""
    make = os.rename
    path = tmp_path / "file"

    def lose_answer(source: Path, target: Path) -> None:
        make(source, target)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))

    path.write_text("old")
    monkeypatch.setattr(os, "rename", lose_answer)
    write_atomically(path, b"new")
    assert path.read_text() == "new"
    with new_folder(tmp_path / "folder") as folder:
        (folder / "file").touch()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_a_rename_that_was_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename fails whether or not another file has the new name."""
    source = tmp_path / "source"
    target = tmp_path / "target"
    source.write_text("new")

    def fail(*_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "rename", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            rename(source, target)
        assert source.read_text() == "new"
        target.write_text("old")
    assert target.read_text() == "old"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o444])
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_rewritten_file_keeps_its_mode(tmp_path: Path, mode: int, umask: int) -> None:
    """A private file stays private, and a group's file stays the group's. A new file follows the umask."""
    path = tmp_path / "file"
    new = tmp_path / "new"
    path.write_text("old")
    path.chmod(mode)
    before = os.umask(umask)
    try:
        write_atomically(path, b"new")
        write_atomically(new, b"new")
    finally:
        os.umask(before)
    assert path.read_bytes() == new.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == mode
    assert new.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_rewritten_link_keeps_the_mode_of_its_file(tmp_path: Path) -> None:
    """The link becomes a file; a private file stays private."""
    file = tmp_path / "file"
    link = tmp_path / "link"
    file.write_text("old")
    file.chmod(0o600)
    link.symlink_to(file)
    write_atomically(link, b"new")
    assert not link.is_symlink()
    assert link.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == "old"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_that_root_rewrites_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, 1234, 1235)
    path.chmod(0o600)
    write_atomically(path, b"new")
    state = path.stat()
    assert (state.st_uid, state.st_gid, state.st_mode & 0o777) == (1234, 1235, 0o600)
