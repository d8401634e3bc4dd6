"""Folders that appear late on other hosts, or never."""

import errno
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from megatape.distributed.topology import Topology
from megatape.reliability.shared_folder import SECRET_BYTES, check_shared, share_secret, wait_until_visible
from tests.helpers.processes.workers import run_workers


def test_appears_late(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"

    def write() -> None:
        path.parent.mkdir()
        path.touch()

    writer = threading.Timer(0.5, write)
    writer.start()
    started = time.monotonic()
    assert wait_until_visible(path, timeout=20)
    assert 0.3 < time.monotonic() - started < 10
    writer.join()


def test_never_appears(tmp_path: Path) -> None:
    assert not wait_until_visible(tmp_path / "file", timeout=0.5)


def test_a_file_server_that_is_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of the file server must not end one rank while the others wait for it in a collective."""
    stat = os.stat
    errors = [OSError(errno.EIO, os.strerror(errno.EIO))] * 2

    def disturbed(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if path == tmp_path and errors:
            raise errors.pop()
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", disturbed)
    assert wait_until_visible(tmp_path, timeout=20)
    assert not errors


def check_folders(payload: list[str], topology: Topology) -> str:
    try:
        check_shared(Path(payload[topology.rank]), topology, patience=1)
    except OSError as error:
        return str(error)
    return ""


def test_one_folder(tmp_path: Path) -> None:
    folder = str(tmp_path / "new" / "run")
    assert run_workers("tests.reliability.test_shared_folder:check_folders", 2, [folder] * 2, tmp_path / "workers") == ["", ""]
    assert list(Path(folder).iterdir()) == []


def test_every_rank_is_told_who_is_blind(tmp_path: Path) -> None:
    folders = [str(tmp_path / "run"), str(tmp_path / "elsewhere")]
    errors: list[Any] = run_workers("tests.reliability.test_shared_folder:check_folders", 2, folders, tmp_path / "workers")
    for error in errors:
        assert f"not visible on {socket.gethostname()}" in error


def test_leftovers_of_killed_starts_prove_nothing(tmp_path: Path) -> None:
    """Earlier starts, which were killed, have left their files in both folders."""
    folders = [str(tmp_path / "run"), str(tmp_path / "elsewhere")]
    for folder in map(Path, folders):
        folder.mkdir()
        (folder / ".shared").touch()
    errors: list[Any] = run_workers("tests.reliability.test_shared_folder:check_folders", 2, folders, tmp_path / "workers")
    for error in errors:
        assert f"not visible on {socket.gethostname()}" in error


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folders = [str(tmp_path / "file" / "run")] * 2
    errors = run_workers("tests.reliability.test_shared_folder:check_folders", 2, folders, tmp_path / "workers")
    for error in errors:
        assert "Not a directory" in error


def share(payload: list[str], topology: Topology) -> str:
    """Share the secret. Return it in hexadecimal digits, or the error."""
    try:
        return share_secret(Path(payload[topology.rank]), topology, patience=1).hex()
    except OSError as error:
        return str(error)


def test_all_ranks_get_the_same_secret(tmp_path: Path) -> None:
    """Sharing neither creates the run directory nor leaves files in its parent."""
    parent = tmp_path / "runs"
    parent.mkdir()
    folders = [str(parent / "run")] * 2
    first, second = run_workers("tests.reliability.test_shared_folder:share", 2, folders, tmp_path / "workers")
    assert first == second
    assert len(bytes.fromhex(first)) == SECRET_BYTES
    assert list(parent.iterdir()) == []


def test_a_secret_that_cannot_be_written(tmp_path: Path) -> None:
    # No user can create files in /proc.
    folders = ["/proc/none/run"] * 2
    errors = run_workers("tests.reliability.test_shared_folder:share", 2, folders, tmp_path / "workers")
    for error in errors:
        assert "must be one folder that all ranks see and can write: [Errno 2]" in error
