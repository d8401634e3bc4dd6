"""Compiled code is never loaded from a folder in /tmp that another user made or can write to."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from megatape.utils.files.private_folder import private_folder


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp" / f"megatape-{os.getuid()}"


def test_one_folder_for_all_processes(usual: Path) -> None:
    assert private_folder("code is compiled again") == private_folder("code is compiled again") == usual
    assert usual.stat().st_mode & 0o777 == 0o700


def _link(usual: Path) -> None:
    elsewhere = usual.parents[1] / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    usual.symlink_to(elsewhere)


def _dangling_link(usual: Path) -> None:
    usual.symlink_to(usual.parents[1] / "nowhere")


def _file(usual: Path) -> None:
    usual.touch()


def _open_folder(usual: Path) -> None:
    usual.mkdir()
    usual.chmod(0o770)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (_link, "is not a folder"),
        (_dangling_link, "is not a folder"),
        (_file, "is not a folder"),
        (_open_folder, "has mode 770"),
    ],
)
def test_another_folder_is_used(
    make: Callable[[Path], None], fault: str, usual: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(usual)
    own = private_folder("code is compiled again")
    assert own is not None
    assert own.parent == usual.parent
    assert own != usual
    assert own.stat().st_mode & 0o777 == 0o700
    assert not own.is_symlink()
    assert f"{usual} {fault}" in caplog.text
    assert f"code is compiled again, in {own}" in caplog.text
    caplog.clear()
    assert private_folder("code is compiled again", is_first=False) not in (None, usual, own)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_without_a_temporary_folder_there_is_no_private_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert private_folder("code is compiled again") is None
