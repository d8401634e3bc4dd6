"""Reading untrusted JSON, and writing outputs without replacing another program's files."""

import errno
import os
from pathlib import Path

import pytest

from megatape.errors import ExistingPath, PathError, UserError
from megatape.utils.files.files import create_file, create_private, link_file, open_regular
from megatape.utils.files.json_files import read_json
from megatape.utils.files.json_lines import append_lines, read_lines
from megatape.utils.files.locks import locked


@pytest.mark.timeout(60)
def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A pipe waits for a writer and a device never ends, so neither is read. Links to files are."""
    pipe, device, link = (tmp_path / name for name in ("pipe", "device", "link"))
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    link.symlink_to(__file__)
    for path in (pipe, device):
        with pytest.raises(ValueError, match=f"{path}: a pipe or a device, not a file"):
            read_json(path)
        with pytest.raises(ValueError, match=f"{path}: a pipe or a device, not a file"):
            list(read_lines(path))
    with open_regular(link) as file:
        assert file.read() == Path(__file__).read_bytes()


def test_a_private_file(tmp_path: Path) -> None:
    """Only its owner can read it, and links planted by another user are not followed."""
    path = tmp_path / "secret"
    planted = tmp_path / "planted"
    target = tmp_path / "target"
    planted.symlink_to(target)
    mask = os.umask(0)
    try:
        create_private(path, b"secret")
    finally:
        os.umask(mask)
    assert path.read_bytes() == b"secret"
    assert path.stat().st_mode & 0o777 == 0o600
    for existing in (path, planted):
        with pytest.raises(FileExistsError):
            create_private(existing, b"other")
    assert not target.exists()


@pytest.mark.timeout(60)
def test_no_output_goes_through_a_link(tmp_path: Path) -> None:
    """Through a planted link, or another name of a file, a downloaded folder could change files outside itself."""
    victim = tmp_path / "victim"
    link = tmp_path / "link"
    pipe = tmp_path / "pipe"
    victim.write_bytes(b"kept")
    os.mkfifo(pipe)
    for target in (victim, tmp_path / "missing"):
        link.symlink_to(target)
        for path in (link, victim):
            with pytest.raises(ExistingPath, match=f"{path} exists already, and outputs replace no file and follow no link"):
                create_file(path)
            with pytest.raises(ExistingPath, match=f"{path} exists already"):
                link_file(__file__, path)
        for path in (link, pipe):
            with pytest.raises(PathError, match=f"{path}: a link, a pipe or a device"), locked(path):
                raise AssertionError("not reached")
            with pytest.raises(PathError, match=f"{path}: a link, a pipe or a device"):
                append_lines(path, [{"number": 1}])
        link.unlink()
    with locked(victim):
        pass
    assert victim.read_bytes() == b"kept"
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("links_work", [True, False])
def test_a_link_to_a_file_becomes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links_work: bool) -> None:
    """A relative link is broken in another folder. Errors name links to anything but files."""
    if not links_work:
        monkeypatch.setattr(os, "link", no_links)
    names = "file", "linked", "folder", "device", "loop", "nothing"
    file, linked, folder, device, loop, nothing = (tmp_path / "given" / name for name in names)
    output = tmp_path / "deep" / "output"
    file.parent.mkdir()
    output.parent.mkdir()
    file.write_bytes(b"content")
    for path, target in ((linked, "file"), (folder, "/usr"), (device, "/dev/zero"), (loop, "loop"), (nothing, "missing")):
        path.symlink_to(target)
    link_file(linked, output)
    assert output.read_bytes() == b"content"
    assert not output.is_symlink()
    assert output.samefile(file) == links_work
    for path, reason in (
        (folder, f"{folder}: a link to a folder, not a file"),
        (device, f"{device}: a link to a pipe or a device, not a file"),
        (tmp_path, f"{tmp_path}: a folder, not a file"),
        (loop, "Too many levels of symbolic links"),
        (nothing, "No such file"),
    ):
        with pytest.raises((UserError, OSError), match=reason):
            link_file(path, tmp_path / "new")
        assert not (tmp_path / "new").exists()


def no_links(source: Path, target: Path) -> None:
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "File exists", str(target))
    raise OSError(errno.EXDEV, "Invalid cross-device link")
