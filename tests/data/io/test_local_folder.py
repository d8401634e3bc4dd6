"""Listing folders on this machine."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from megatape.data.io.inputs import find_files
from megatape.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of lines, unfinished preparations, a broken link and a link to a folder."""
    for name in ("a/0.jsonl", "b/c/1.jsonl", "out.partial/units/2.jsonl", "in.partial/3.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "broken.jsonl").symlink_to("nowhere")
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "b")
    return tmp_path


def test_files_of_a_folder(folder: Path) -> None:
    """A broken link is listed, so that reading it fails. Links to folders and unfinished preparations are not entered."""
    expected = [f"{folder}/{name}" for name in ("a/0.jsonl", "a/broken.jsonl", "b/c/1.jsonl")]

    assert find_files([str(folder)], "*.jsonl") == expected


def test_names_in_the_working_folder_have_no_dot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are located by these names, and read in their order."""
    (folder / "c.jsonl").touch()
    monkeypatch.chdir(folder)

    assert find_files(["."], "*.jsonl") == ["a/0.jsonl", "a/broken.jsonl", "b/c/1.jsonl", "c.jsonl"]
    assert find_files(["./b"], "*.jsonl") == ["b/c/1.jsonl"]


def test_an_unfinished_preparation_is_entered_on_request(folder: Path) -> None:
    assert find_files([str(folder / "in.partial")], "*.jsonl") == [f"{folder}/in.partial/3.jsonl"]


def test_a_folder_without_files_is_refused(folder: Path) -> None:
    """Files in folders below do not count if the listing is not recursive."""
    with pytest.raises(UserError, match="no file named"):
        find_files([str(folder / "b")], "*.jsonl", recursive=False)


def test_a_file_of_two_inputs_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=f"input: {folder}/b/c/1.jsonl is given twice"):
        find_files([f"{folder}/b/../b/c/1.jsonl", str(folder / "b")], "*.jsonl")


def test_a_folder_that_cannot_be_listed_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in an unreadable folder must not be skipped silently."""
    scandir = os.scandir

    def refuse_folder_b(path: str) -> Any:
        if str(path).endswith("b"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse_folder_b)

    with pytest.raises(PermissionError):
        find_files([str(folder)], "*.jsonl")
