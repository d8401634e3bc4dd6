"""Manifests of checkpoints: which files and contents they accept, and how each fault is reported."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from megatape.checkpoint.format.hashed_files import write_file
from megatape.checkpoint.format.manifest import MANIFEST, check_hashes, load_manifest, save_manifest
from tests.helpers.data.json_edits import REMOVED, set_file_entry
from tests.helpers.runs.manifests import BASE, rewrite

FILES = {"a": b"first", "b": b"second", "c": b"third"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "run" / "checkpoints" / "step-00000002"
    directory.mkdir(parents=True)
    files = {name: write_file(directory / name, [content]) for name, content in FILES.items()}
    save_manifest(directory, files, {"weight": {"w": "a"}})
    return directory


def test_a_saved_manifest_is_loaded(checkpoint: Path) -> None:
    manifest = load_manifest(checkpoint)
    assert manifest.tensors == {"weight": {"w": "a"}}
    assert {name: record.bytes for name, record in manifest.files.items()} == {"a": 5, "b": 6, "c": 5}
    check_hashes(checkpoint, manifest)


def test_a_missing_folder_is_refused(checkpoint: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_manifest(checkpoint / "missing")


def test_a_run_directory_is_refused_with_its_newest_checkpoint(checkpoint: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is a run, not a checkpoint; its newest checkpoint is .*step-00000002"):
        load_manifest(checkpoint.parents[1])


def test_a_checkpoint_without_a_manifest_is_incomplete(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()
    with pytest.raises(FileNotFoundError, match="not a complete checkpoint"):
        load_manifest(checkpoint)


def test_hashing_refuses_a_file_with_other_content(checkpoint: Path) -> None:
    """Opening compares sizes only."""
    (checkpoint / "b").write_bytes(b"secant")
    manifest = load_manifest(checkpoint)
    with pytest.raises(ValueError, match="b: its sha256 is not the one in the manifest"):
        check_hashes(checkpoint, manifest)


def test_opening_refuses_a_truncated_file(checkpoint: Path) -> None:
    (checkpoint / "b").write_bytes(b"sec")
    with pytest.raises(ValueError, match="b: 3 bytes instead of 6; the checkpoint is truncated"):
        load_manifest(checkpoint)


def test_opening_refuses_a_missing_file(checkpoint: Path) -> None:
    (checkpoint / "b").unlink()
    with pytest.raises(ValueError, match="b: missing"):
        load_manifest(checkpoint)


@pytest.mark.parametrize("name", ["exp_avg-00000.safetensors", "tokenizer.json", "state.json"])
def test_an_unlisted_part_is_refused(checkpoint: Path, name: str) -> None:
    """The part may be from another checkpoint, and a tokenizer.json would replace tokenizer.model. Other files are accepted."""
    (checkpoint / "notes.txt").write_text("no part of any checkpoint")
    load_manifest(checkpoint)
    (checkpoint / name).write_text("{}")
    with pytest.raises(ValueError, match=f"{name}: the manifest does not list it"):
        load_manifest(checkpoint)


@pytest.mark.timeout(60)
def test_a_pipe_and_a_device_are_no_files(checkpoint: Path) -> None:
    """Reading a pipe or a device of zeros would never end, so their size and hash are not computed."""
    manifest = load_manifest(checkpoint)
    for path in (checkpoint / "b", checkpoint / MANIFEST):
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(ValueError, match=f"{path}: a .*pipe or a device"):
            load_manifest(checkpoint)
        path.unlink()
        path.symlink_to("/dev/zero")
        with pytest.raises(ValueError, match=f"{path}: a .*pipe or a device"):
            load_manifest(checkpoint)
    with pytest.raises(ValueError, match="b: a pipe or a device"):
        check_hashes(checkpoint, manifest)


def test_hashing_is_distributed_over_ranks(checkpoint: Path) -> None:
    """Two ranks share the work: the first hashes files 0 and 2, and the second hashes file 1."""
    manifest = load_manifest(checkpoint)
    (checkpoint / "b").write_bytes(b"secant")
    check_hashes(checkpoint, manifest, share=0, num_shares=2)
    with pytest.raises(ValueError, match="sha256"):
        check_hashes(checkpoint, manifest, share=1, num_shares=2)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_manifest_that_is_no_object_is_refused(checkpoint: Path, content: str) -> None:
    (checkpoint / MANIFEST).write_text(content)
    with pytest.raises(ValueError, match="corrupted"):
        load_manifest(checkpoint)


def test_a_manifest_without_its_hash_is_refused(checkpoint: Path) -> None:
    set_file_entry(checkpoint / MANIFEST, "sha256", REMOVED)
    with pytest.raises(ValueError, match="corrupted"):
        load_manifest(checkpoint)


def test_a_changed_manifest_is_refused(checkpoint: Path) -> None:
    set_file_entry(checkpoint / MANIFEST, "tensors", {})
    with pytest.raises(ValueError, match="sha256 is not the one it records"):
        load_manifest(checkpoint)


@pytest.mark.parametrize(
    ("forged", "error"),
    [
        ({"format": "1"}, "format: must be a valid integer, got '1'"),
        ({"format": True}, "format: must be a valid integer, got true"),
        ({"features": "ema"}, "features: must be"),
        ({"features": [1]}, "features.0: must be"),
        ({"features": ["base"]}, "features ['base'] without a base"),
        ({"features": ["ema"]}, "features ['ema'] without an average of weights"),
        ({"base": {}}, "base.folder: Field required"),
        ({"base": BASE}, "features [] with a base"),
        ({"base": BASE | {"folder": 1}}, "base.folder: must be a valid string"),
        ({"base": BASE | {"tensors": {"w": {"file": "a", "name": "x", "shape": "none"}}}}, "base.tensors.w.shape"),
        ({"base": BASE | {"files": {"../a": {"bytes": 1, "sha256": ""}}}}, "'../a': not a plain file name"),
        ({"base": BASE | {"tensors": {"w": {"file": "c", "name": "x", "shape": [1]}}}}, "weight of w is in 'c', which is not"),
        ({"files": []}, "files: must be an object"),
        ({"files": {"../../a": {}}}, "'../../a': not a plain file name"),
        ({"files": {"..": {}}}, "'..': not a plain file name"),
        ({"files": {"a": {"bytes": "5", "sha256": ""}}}, "files.a.bytes: must be a valid integer"),
        ({"files": {"a": {"bytes": 5}}}, "files.a.sha256: Field required"),
        ({"tensors": {"weight": ["w"]}}, "tensors.weight: must be an object"),
        ({"tensors": {"weight": {"w": "d"}}}, "weight of w is in 'd', which is not among the files"),
        ({"tensors": {"ema": {"w": "a"}}}, "features [] with an average of weights"),
    ],
)
def test_faults_of_the_manifest(checkpoint: Path, forged: dict[str, Any], error: str) -> None:
    """The hash of the forged manifest is correct, so only its content can be refused."""
    path = checkpoint / MANIFEST
    rewrite(path, json.loads(path.read_text()) | forged)
    with pytest.raises(ValueError, match=re.escape(error)):
        load_manifest(checkpoint)
