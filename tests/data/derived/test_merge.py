"""Merging data directories: the same documents in order, shards as links, and nothing left after an error."""

import errno
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from megatape.data.derived.append import append
from megatape.data.derived.merge import merge
from megatape.data.shards.entries import SPLITS
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.writer import MEMBER_TOKENS
from megatape.data.synthetic.addition_problems import AdditionTask, prepare_addition
from megatape.data.tokenizers.sentencepiece import character_tokenizer
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.errors import UserError
from tests.helpers.data.data_directory import (
    Documents,
    MakeDirectory,
    flip,
    hashes_of,
    linked_snapshot,
    make_earlier,
    read_all,
)
from tests.helpers.data.merged_folders import check_whole, locations_of, prepared, rename_table
from tests.helpers.processes.command import Command

EARLIER = Path(__file__).parents[2] / "compatibility" / "fixtures" / "earlier_data" / "version-2"
# The first shard in a prepared folder, and its name in a merged one
FIRST_SHARD = "train-00000-000000.tar"
FIRST_MERGED_SHARD = "train-0000-00000-000000.tar"


def refuse_links(source: Path, target: Path) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


def names_in(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def train_fingerprint(folder: Path) -> str:
    return load_index(folder).fingerprint("train")


def test_merge_links_shards_in_order(folders: list[Path], tmp_path: Path) -> None:
    progress: list[int] = []

    index = merge(folders, tmp_path / "all", progress=progress.append)

    check_whole(tmp_path / "all", folders, index)
    assert sum(progress) == sum(split.tokens for split in index.splits.values())
    assert index.splits["train"].shards[0].file == FIRST_MERGED_SHARD
    assert (tmp_path / "all" / FIRST_MERGED_SHARD).samefile(folders[0] / FIRST_SHARD)


def test_merged_folders_are_merged_again(folders: list[Path], tmp_path: Path) -> None:
    """The result records the same sources as a folder merged at once."""
    merge(folders[:2], tmp_path / "two")

    index = merge([tmp_path / "two", folders[2]], tmp_path / "nested")

    check_whole(tmp_path / "nested", folders, index)


def test_merged_folders_have_fingerprints_of_their_own(folders: list[Path], tmp_path: Path) -> None:
    """With the same fingerprint, a run would resume on other data."""
    merge(folders, tmp_path / "all")
    merge(folders[:2], tmp_path / "two")
    directories = [tmp_path / "all", tmp_path / "two", *folders]

    fingerprints = {TokenDataset(StoredSplit(directory, "train"), 8).fingerprint for directory in directories}

    assert len(fingerprints) == len(directories)


class FullDisk:
    """Copies files until the disk is full.

    Args:
        num_files: Number of files copied before.
    """

    def __init__(self, num_files: int) -> None:
        self._num_left = num_files

    def copy(self, source: BinaryIO, target: BinaryIO) -> None:
        target.write(source.read())
        if self._num_left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._num_left -= 1


@pytest.mark.parametrize("num_files", [0, 3])
def test_full_disk_leaves_nothing_new(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int
) -> None:
    """A full disk leaves nothing behind after merging, and after appending the folder as it was."""
    monkeypatch.setattr(os, "link", refuse_links)
    monkeypatch.setattr(shutil, "copyfileobj", FullDisk(num_files).copy)
    hashes = hashes_of(folders[0])
    names = names_in(tmp_path)

    with pytest.raises(OSError, match="No space left"):
        merge(folders, tmp_path / "all")
    assert names_in(tmp_path) == names

    with pytest.raises(OSError, match="No space left"):
        append(folders[1:], folders[0])
    assert hashes_of(folders[0]) == hashes


def test_shards_are_copied_where_links_are_impossible(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refuse_links)

    check_whole(tmp_path / "all", folders, merge(folders, tmp_path / "all"))

    assert not (tmp_path / "all" / FIRST_MERGED_SHARD).samefile(folders[0] / FIRST_SHARD)


@pytest.mark.parametrize("shard_tokens", [None, MEMBER_TOKENS], ids=["linked shards", "new shards"])
def test_a_hostile_folder_writes_nowhere_else(folders: list[Path], tmp_path: Path, shard_tokens: int | None) -> None:
    """Two output names collide. The first output is a link to a user's file, so writing the second would overwrite it."""
    hostile = folders[0]
    victim = tmp_path / ".bashrc"
    if shard_tokens is None:
        planted = rename_table(hostile, 0, "trainx.parquet")
        rename_table(hostile, 1, "x.parquet")
    else:
        planted = rename_table(hostile, 0, "train00.tar")
    victim.write_bytes(planted.read_bytes())
    planted.unlink()
    planted.symlink_to(victim)
    content = victim.read_bytes()
    names = names_in(tmp_path)

    with pytest.raises(UserError, match="exists already, and outputs replace no file"):
        merge([hostile], tmp_path / "out", shard_tokens)

    assert victim.read_bytes() == content
    assert names_in(tmp_path) == names


@pytest.mark.parametrize("split", SPLITS)
def test_same_documents_have_the_same_fingerprint(folders: list[Path], tmp_path: Path, split: str) -> None:
    """A run on a merged folder resumes if the same documents were appended, or merged from merged folders."""
    merge(folders, tmp_path / "all")
    merge(folders[:2], tmp_path / "two")
    merge([tmp_path / "two", folders[2]], tmp_path / "nested")
    before = load_index(folders[0]).fingerprint(split)
    append(folders[1:], folders[0])

    expected = load_index(tmp_path / "all").fingerprint(split)
    assert load_index(tmp_path / "nested").fingerprint(split) == expected
    assert load_index(folders[0]).fingerprint(split) == expected
    assert before != expected


def test_the_order_of_folders_changes_the_fingerprint(folders: list[Path], tmp_path: Path) -> None:
    merge([folders[1], folders[2]], tmp_path / "ordered")
    merge([folders[2], folders[1]], tmp_path / "reversed")

    assert train_fingerprint(tmp_path / "ordered") != train_fingerprint(tmp_path / "reversed")


@pytest.mark.parametrize("links_work", [True, False])
def test_snapshots_of_relative_links_are_copied(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links_work: bool
) -> None:
    """Merging snapshots in the hub's cache writes their files, not relative links, which would be broken in the result."""
    if not links_work:
        monkeypatch.setattr(os, "link", refuse_links)
    snapshots = [linked_snapshot(folder) for folder in folders]

    check_whole(tmp_path / "all", folders, merge(snapshots, tmp_path / "all"))
    check_whole(tmp_path / "new", folders, merge(snapshots, tmp_path / "new", MEMBER_TOKENS))
    append(snapshots[1:], snapshots[0])

    assert np.array_equal(read_all(snapshots[0]), read_all(tmp_path / "all"))
    for output in ("all", "new"):
        assert [path for path in (tmp_path / output).iterdir() if path.is_symlink()] == []


@pytest.mark.parametrize("target", ["/usr", "/dev/zero"])
@pytest.mark.parametrize("kind", ["shard", "table", "tokenizer"])
def test_links_to_folders_and_devices_are_refused(folders: list[Path], tmp_path: Path, kind: str, target: str) -> None:
    folder = folders[0]
    index = load_index(folder)
    names = {
        "shard": index.splits["train"].shards[0].file,
        "table": index.document_tables["train"][0].file,
        "tokenizer": "tokenizer.model",
    }
    path = folder / names[kind]
    content = path.read_bytes()

    path.unlink()
    path.symlink_to(target)
    with pytest.raises(UserError, match=f"{path}: "):
        merge([folder], tmp_path / "out")

    path.unlink()
    path.write_bytes(content)
    merge([folder], tmp_path / "out")


@pytest.fixture
def unfit(folders: list[Path], tmp_path: Path, make_directory: MakeDirectory, documents: Documents) -> dict[str, Path]:
    """Prepare folders unsuitable for merging with the first one, by name."""
    first = folders[0]
    unfit = {
        name: tmp_path / name for name in ("other", "link", "merged", "new_shards", "old", "begun", "begun.partial", "missing")
    }
    prepared(tmp_path, "other", character_tokenizer("0123456789abcdefghijklmnopqrstuvwxyz "))
    prepared(tmp_path, "old", StoredSplit(first, "train").tokenizer())
    make_earlier(unfit["old"])
    unfit["link"].symlink_to(folders[1])
    unfit["begun.partial"].mkdir()
    merge(folders[:2], unfit["merged"])
    merge(folders[:1], unfit["new_shards"], shard_tokens=64)

    unfit["plain"] = make_directory(documents)
    index = load_index(unfit["plain"])
    save_index(replace(index, tokenizer=load_index(first).tokenizer, dtype="uint16"), unfit["plain"])
    return unfit


def test_folders_that_do_not_fit_are_refused(folders: list[Path], tmp_path: Path, unfit: dict[str, Path]) -> None:
    """Each error names the folder and the reason, and nothing is written."""
    first = folders[0]
    reasons = {
        "other": f"{tmp_path}/other has another tokenizer .* than {first}",
        "merged": f"{tmp_path}/merged has the same data as {first}, or a part of them: give each folder once",
        "new_shards": f"{tmp_path}/new_shards has the same data as {first}, or a part of them",
        "old": f"{tmp_path}/old is of an earlier version of the format: give `shard_tokens`, by which shards are new",
        "plain": f"only one of {first} and {unfit['plain']} has a ledger and tables of documents",
        "begun": f"{tmp_path}/begun is still being prepared: give the same command again",
        "begun.partial": f"{tmp_path}/begun.partial is still being prepared",
        "missing": "not found: .*missing is not a data directory",
    }
    names = names_in(tmp_path)

    for name, reason in reasons.items():
        with pytest.raises(UserError, match=reason):
            merge([first, unfit[name]], tmp_path / "out")
    with pytest.raises(UserError, match=f"{unfit['link']} has the same data as {folders[1]}"):
        merge([first, folders[1], unfit["link"]], tmp_path / "out")

    assert names_in(tmp_path) == names


def test_a_folder_is_not_merged_with_itself(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{folders[0]} has the same data as {folders[0]}"):
        merge([folders[0], folders[0]], tmp_path / "out")


def test_an_existing_output_is_refused(folders: list[Path]) -> None:
    with pytest.raises(UserError, match="exists: remove it or choose another name"):
        merge(folders, folders[0])


def test_damaged_folders_are_refused(folders: list[Path], tmp_path: Path) -> None:
    """A changed shard, a changed table and a missing tokenizer are named, and nothing is written."""
    names = names_in(tmp_path)

    flip(folders[1] / "train-00001-000000.tar", 700)
    with pytest.raises(UserError, match="train-00001-000000.tar member 0: corrupted"):
        merge(folders, tmp_path / "out")

    table = load_index(folders[2]).document_tables["train"][0].file
    flip(folders[2] / table, 30)
    with pytest.raises(UserError, match=f"{table}: corrupted, sha256"):
        append(folders[2:], folders[0])

    (folders[0] / "tokenizer.model").unlink()
    with pytest.raises(UserError, match="tokenizer.model: not found, the index lists it"):
        merge(folders[:1], tmp_path / "out")

    assert names_in(tmp_path) == names


@pytest.mark.parametrize("shard_tokens", [100, MEMBER_TOKENS, 3 * MEMBER_TOKENS + 1])
def test_merge_writes_shards_of_another_size(folders: list[Path], tmp_path: Path, shard_tokens: int) -> None:
    index = merge(folders, tmp_path / "all", shard_tokens)

    check_whole(tmp_path / "all", folders, index)
    for split in index.splits.values():
        *full, last = [shard.tokens for shard in split.shards]
        assert set(full) <= {shard_tokens}
        assert 0 < last <= shard_tokens


@pytest.mark.parametrize("shard_tokens", [100, MEMBER_TOKENS, 3 * MEMBER_TOKENS + 1])
def test_new_shards_of_one_folder_keep_its_record(folders: list[Path], tmp_path: Path, shard_tokens: int) -> None:
    expected = load_index(folders[0])

    index = merge(folders[:1], tmp_path / "one", shard_tokens)

    assert index.source == expected.source
    assert index.ledger == expected.ledger
    assert index.rules == expected.rules
    locations = locations_of(tmp_path / "one", "train") + locations_of(tmp_path / "one", "validation")
    assert f"{tmp_path}/web.jsonl:2" in locations
    assert len(set(locations)) > 1


def test_folder_of_an_earlier_version_gets_new_shards(tmp_path: Path) -> None:
    """The result has the present version, with the same tokens."""
    assert load_index(EARLIER).earlier is not None

    index = merge([EARLIER], tmp_path / "new", MEMBER_TOKENS)

    assert load_index(tmp_path / "new") == index
    assert index.earlier is None
    for split in SPLITS:
        assert np.array_equal(read_all(tmp_path / "new", split), read_all(EARLIER, split))


def test_command_merges_and_appends(folders: list[Path], tmp_path: Path, command: Command) -> None:
    """A grown folder has another fingerprint, preventing runs from resuming on it."""
    output = tmp_path / "all"
    status, printed, errors = command("data", "merge", output, *folders[:2])
    assert status == 0, errors
    assert "wrote" not in errors
    assert printed.endswith(f"wrote {output}\n")
    before = load_index(output)

    _, _, errors = command("data", "merge", output, folders[2])
    assert errors.endswith("exists: remove it or choose another name\n")

    status, _, errors = command("data", "merge", output, folders[2], "--append")
    assert status == 0, errors
    after = load_index(output)
    assert check_ledger(after).written > check_ledger(before).written
    assert after.fingerprint("train") != before.fingerprint("train")

    status, printed, errors = command("data", "report", output, "--verify")
    assert status == 0, errors
    assert f"kind merge, folders ['{folders[0]}', '{folders[1]}', '{folders[2]}']\n" in printed
    assert re.search(r"books\.jsonl +91 ", printed)

    status, _, errors = command("data", "where", output, "--document", 0)
    assert status == 0, errors

    _, _, errors = command("data", "merge", output, folders[2], "--append", "--shard-tokens", 9)
    assert "--append" in errors


def test_folders_without_ledger_are_merged(tmp_path: Path) -> None:
    """Splits are merged even without ledgers. The result then has no ledger and no tables, either."""
    parts = []
    for seed in range(2):
        part = tmp_path / f"{seed}"
        prepare_addition(AdditionTask(digits=2, per_cell=5, seed=seed), part, lambda tokens: None)
        parts.append(part)

    index = merge(parts, tmp_path / "both")

    assert index.ledger == {}
    assert index.document_tables == {}
    for split in SPLITS:
        expected = np.concatenate([read_all(part, split) for part in parts])
        assert np.array_equal(read_all(tmp_path / "both", split), expected)
