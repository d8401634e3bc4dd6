"""JSON of unknown origin, and outputs that never replace what somebody else made."""

import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatape.checkpoint.hashed_files import write_file
from megatape.data.shards.legacy import LegacyShard
from megatape.errors import ExistingPath, PathError, UserError
from megatape.utils.atomic import new_folder, rename, write_atomically
from megatape.utils.files import FileName, create_file, create_private, link_file, open_regular
from megatape.utils.json_files import MAX_DEPTH, MAX_JSON_BYTES, json_content, parse_json, read_json
from megatape.utils.json_lines import MAX_LINE_BYTES, append_lines, read_lines
from megatape.utils.locks import locked
from megatape.utils.validation import as_type
from tests.helpers.load import scaled


def test_deep_json_is_refused() -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        inside = opened * MAX_DEPTH + "1" + closed * MAX_DEPTH
        assert parse_json(inside)
        for text in (f"{opened}{inside}{closed}", opened * 100_000 + "1" + closed * 100_000):
            with pytest.raises(ValueError, match="nested more than 64 levels deep"):
                parse_json(text)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """Writer and reader have the same limits: both accept the largest value and reject a larger one."""
    path = tmp_path / "file.json"
    deepest: Any = 1
    for _ in range(MAX_DEPTH):
        deepest = (deepest,)
    for value, larger, told in (
        (deepest, [deepest], "file.json would be nested more than 64 levels deep, and could not be read again"),
        ("x" * 98, "x" * 99, "file.json would have 101 bytes, and more than 100 could not be read again"),
    ):
        max_bytes = 100 if isinstance(value, str) else MAX_JSON_BYTES
        path.write_bytes(json_content(value, path.name, max_bytes=max_bytes))
        assert read_json(path, max_bytes=max_bytes)
        with pytest.raises(UserError, match=told):
            json_content(larger, path.name, max_bytes=max_bytes)
    path.write_bytes(json_content({"a": path}, path.name, indent=1, default=str))
    assert read_json(path) == {"a": str(path)}


def test_a_line_that_is_too_long_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    frame = len(json.dumps({"text": ""})) + 1
    longest = {"text": "x" * (MAX_LINE_BYTES - 1 - frame)}
    append_lines(path, [longest])
    with pytest.raises(UserError, match="lines.jsonl: a line of 1,048,576 bytes could not be read again"):
        append_lines(path, [{"text": "short"}, {"text": longest["text"] + "x"}])
    assert [entry for _, entry in read_lines(path)] == [longest]


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


@pytest.mark.timeout(60)
def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """Neither a pipe, which waits for a writer, nor a device, which never ends; links to files are."""
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


def test_types_of_fields() -> None:
    """The first fault in one line, whatever is wrong."""
    content = {"file": "a", "bytes": 3, "members": []}
    assert as_type(content, LegacyShard) == LegacyShard("a", 3, [])
    member = {"offset": 0, "bytes": 1, "tokens": 1, "documents": 0}
    for value, told in (
        ([], "must be a dictionary or an instance of LegacyShard, got a list"),
        (
            content | {"bytes": "x" * 100},
            f"bytes: must be a valid integer, unable to parse string as an integer, got '{'x' * 80}'",
        ),
        (content | {"bytes": -1}, "bytes: must be greater than or equal to 0, got -1"),
        (content | {"bytes": 2**63}, "bytes: must be less than or equal to"),
        (content | {"members": [member]}, "members.0.sha256: Field required"),
    ):
        with pytest.raises(ValueError, match=rf"^{told}[^\n]*$"):
            as_type(value, LegacyShard)


def test_names_of_files() -> None:
    names = ["a", "...", "a b", ".a", "a.."]
    assert as_type(names, list[FileName]) == names
    for name in ("", ".", "..", "a/b", "/", "a/", "../a", "a\0"):
        with pytest.raises(ValueError, match=f"^0 is {re.escape(repr(name))}: not a plain file name$"):
            as_type([name], list[FileName])


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
    with pytest.raises(OSError, match="No space left on device: '.*full'"), new_folder(tmp_path / "full"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="Connection reset by peer$"), new_folder(tmp_path / "full"):
        raise OSError(errno.ECONNRESET, "Connection reset by peer")  # of what was read
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tmp"] and not list(output.iterdir())


@pytest.mark.parametrize("length", range(MAX_LINE_BYTES - 2, MAX_LINE_BYTES + 3))
def test_the_longest_line(tmp_path: Path, length: int) -> None:
    """No part of a line that is too long is taken for a line."""
    path = tmp_path / "events.jsonl"
    line = json.dumps({"event": "failed", "detail": ""})
    line = line.replace('""', f'"{"x" * (length - len(line) - 1)}"') + "\n"
    assert len(line) == length
    path.write_text(f'{line}{{"event": "a"}}\n{" " * (MAX_LINE_BYTES + 5)}{{"event": "part"}}\n{{"event": "b"}}\n')
    found = [event["event"] for _, event in read_lines(path)]
    assert found == [*(["failed"] if length < MAX_LINE_BYTES else []), "a", "b"]


@pytest.mark.parametrize("before", [None, b"", b'{"number": 0}\n', b'{"number": 0}\n{"number": 7, "te'])
def test_append(before: bytes | None, tmp_path: Path) -> None:
    """A torn last line does not spoil those that follow."""
    path = tmp_path / "lines.jsonl"
    if before is not None:
        path.write_bytes(before)
    append_lines(path, [{"number": 1}, {"number": 2, "text": "\u20ac\n"}])
    append_lines(path, [{"number": 3}])
    assert [entry["number"] for _, entry in read_lines(path)] == [*([0] if before else []), 1, 2, 3]
    assert path.read_bytes().endswith(b'{"number": 3}\n')


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
    assert victim.read_bytes() == b"kept" and not (tmp_path / "missing").exists()


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
    assert output.read_bytes() == b"content" and not output.is_symlink()
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


def test_a_lock_that_is_removed(tmp_path: Path) -> None:
    """Each process locks the file that has the name, and the last process removes it."""
    path = tmp_path / "lock"
    holders = [0]
    most = [0]

    def work() -> None:
        for _ in range(20):
            with locked(path, remove=True):
                holders[0] += 1
                most[0] = max(most[0], holders[0])
                time.sleep(0.0005)
                holders[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=scaled(60))
    assert most == [1] and not path.exists()


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
    assert not link.is_symlink() and link.stat().st_mode & 0o777 == 0o600
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
