"""Data directories that become one: the same documents in order, whose shards are links, and nothing after an error."""

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
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.token_dataset import TokenDataset
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
from tests.helpers.data.merged_folders import check_whole, places_of, prepared, rename_table
from tests.helpers.processes.command import Command

EARLIER = Path(__file__).parents[2] / "compatibility" / "fixtures" / "earlier_data" / "version-2"


def test_merge_links_shards_in_order(folders: list[Path], tmp_path: Path) -> None:
    """Shards are links. A folder of merged ones has the same record as one merged at once."""
    seen: list[int] = []
    index = merge(folders, tmp_path / "all", progress=seen.append)
    check_whole(tmp_path / "all", folders, index)
    assert sum(seen) == sum(split.tokens for split in index.splits.values())
    shard = index.splits["train"].shards[0].file
    assert shard == "train-0000-00000-000000.tar"
    assert (tmp_path / "all" / shard).samefile(folders[0] / "train-00000-000000.tar")
    merge(folders[:2], tmp_path / "two")
    check_whole(tmp_path / "nested", folders, merge([tmp_path / "two", folders[2]], tmp_path / "nested"))
    fingerprints = {
        TokenDataset(StoredSplit(folder, "train"), 8).fingerprint for folder in (tmp_path / "all", tmp_path / "two", *folders)
    }
    assert len(fingerprints) == 5, "a run would resume on other data"


@pytest.mark.parametrize("number", [0, 3])
def test_full_disk_leaves_nothing_new(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Files are copied where no links can be made. A full disk leaves nothing of a merge, and before an append the folder."""
    copied: list[object] = []

    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def copy(source: BinaryIO, target: BinaryIO) -> None:
        target.write(source.read())
        copied.append(source)
        if len(copied) > number:
            raise OSError(errno.ENOSPC, "No space left on device")

    before = hashes_of(folders[0])
    names = set(os.listdir(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        patch.setattr(shutil, "copyfileobj", copy)
        with pytest.raises(OSError, match="No space left"):
            merge(folders, tmp_path / "all")
        assert set(os.listdir(tmp_path)) == names
        with pytest.raises(OSError, match="No space left"):
            append(folders[1:], folders[0])
        assert hashes_of(folders[0]) == before
        number = 1000
        copied.clear()
        check_whole(tmp_path / "all", folders, merge(folders, tmp_path / "all"))
    assert not (tmp_path / "all" / "train-0000-00000-000000.tar").samefile(folders[0] / "train-00000-000000.tar")


@pytest.mark.parametrize("shard_tokens", [None, MEMBER_TOKENS])
def test_a_hostile_folder_writes_nowhere_else(folders: list[Path], tmp_path: Path, shard_tokens: int | None) -> None:
    """Names of two outputs collide. The first output is a link to a user's file, so writing the second would overwrite it."""
    evil = folders[0]
    victim = tmp_path / ".bashrc"
    planted = rename_table(evil, 0, "trainx.parquet" if shard_tokens is None else "train00.tar")
    victim.write_bytes(planted.read_bytes())
    planted.unlink()
    planted.symlink_to(victim)
    if shard_tokens is None:
        rename_table(evil, 1, "x.parquet")
    content = victim.read_bytes()
    names = set(os.listdir(tmp_path))
    with pytest.raises(UserError, match="exists already, and outputs replace no file"):
        merge([evil], tmp_path / "out", shard_tokens)
    assert victim.read_bytes() == content and set(os.listdir(tmp_path)) == names


def test_same_documents_have_the_same_fingerprint(folders: list[Path], tmp_path: Path) -> None:
    """A run on a merged folder resumes if the same documents were appended, or merged from merged folders."""
    merge(folders, tmp_path / "all")
    merge(folders[:2], tmp_path / "two")
    merge([tmp_path / "two", folders[2]], tmp_path / "nested")
    prepared = load_index(folders[0])
    append(folders[1:], folders[0])
    for split in SPLITS:
        found = {load_index(folder).fingerprint(split) for folder in (tmp_path / "all", tmp_path / "nested", folders[0])}
        assert len(found) == 1 and prepared.fingerprint(split) not in found
    merge([folders[1], folders[2]], tmp_path / "others")
    merge([folders[2], folders[1]], tmp_path / "reversed")
    assert load_index(tmp_path / "others").fingerprint("train") != load_index(tmp_path / "reversed").fingerprint("train")


@pytest.mark.parametrize("links_work", [True, False])
def test_snapshots_of_relative_links_are_copied(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links_work: bool
) -> None:
    """Merging snapshots of the hub's cache writes their files, not relative links, which would be broken in the result."""
    if not links_work:
        monkeypatch.setattr(os, "link", no_links)
    snapshots = [linked_snapshot(folder) for folder in folders]
    check_whole(tmp_path / "all", folders, merge(snapshots, tmp_path / "all"))
    check_whole(tmp_path / "new", folders, merge(snapshots, tmp_path / "new", MEMBER_TOKENS))
    append(snapshots[1:], snapshots[0])
    assert np.array_equal(read_all(snapshots[0]), read_all(tmp_path / "all"))
    for output in ("all", "new"):
        assert not any(path.is_symlink() for path in (tmp_path / output).iterdir())


def test_links_to_folders_and_devices_are_refused(folders: list[Path], tmp_path: Path) -> None:
    """The error names each link to a folder or device."""
    index = load_index(folders[0])
    for name in (index.splits["train"].shards[0].file, index.document_tables["train"][0].file, "tokenizer.model"):
        original = (folders[0] / name).read_bytes()
        for target in ("/usr", "/dev/zero"):
            (folders[0] / name).unlink()
            (folders[0] / name).symlink_to(target)
            with pytest.raises(UserError, match=f"{folders[0]}/{name}: "):
                merge(folders[:1], tmp_path / "out")
        (folders[0] / name).unlink()
        (folders[0] / name).write_bytes(original)
    merge(folders[:1], tmp_path / "out")


def no_links(source: Path, target: Path) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


def test_folders_that_do_not_fit_are_refused(
    folders: list[Path], tmp_path: Path, make_directory: MakeDirectory, documents: Documents
) -> None:
    """Each is named with the reason, and nothing is written."""
    other = prepared(tmp_path, "other", character_tokenizer("0123456789abcdefghijklmnopqrstuvwxyz "))
    link = tmp_path / "link"
    old = prepared(tmp_path, "old", load(folders[0]))
    plain = make_directory(documents)
    link.symlink_to(folders[1])
    make_earlier(old)
    merge(folders[:2], tmp_path / "merged")
    merge(folders[:1], tmp_path / "alone", shard_tokens=64)
    index = load_index(plain)
    save_index(replace(index, tokenizer=load_index(folders[0]).tokenizer, dtype="uint16"), plain)
    (tmp_path / "begun.partial").mkdir()
    before = set(os.listdir(tmp_path))
    for others, fault in (
        ([other], f"{other} has another tokenizer .* than {folders[0]}"),
        ([folders[1], link], f"{link} has the same data as {folders[1]}"),
        ([folders[0]], f"{folders[0]} has the same data as {folders[0]}"),
        (
            [tmp_path / "merged"],
            f"{tmp_path}/merged has the same data as {folders[0]}, or a part of them: give each folder once",
        ),
        ([tmp_path / "alone"], f"{tmp_path}/alone has the same data as {folders[0]}, or a part of them"),
        ([old], f"{old} is of an earlier version of the format: give `shard_tokens`, by which shards are new"),
        ([plain], f"only one of {folders[0]} and {plain} has a ledger and tables of documents"),
        ([tmp_path / "begun"], f"{tmp_path}/begun is still being prepared: give the same command again"),
        ([tmp_path / "begun.partial"], f"{tmp_path}/begun.partial is still being prepared"),
        ([tmp_path / "missing"], "not found: .*missing is not a data directory"),
    ):
        with pytest.raises(UserError, match=fault):
            merge([folders[0], *others], tmp_path / "out")
    with pytest.raises(UserError, match="exists: remove it or choose another name"):
        merge(folders, folders[0])
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
    assert set(os.listdir(tmp_path)) == before


def load(folder: Path) -> Tokenizer:
    return StoredSplit(folder, "train").tokenizer()


@pytest.mark.parametrize("shard_tokens", [100, MEMBER_TOKENS, 3 * MEMBER_TOKENS + 1])
def test_merge_writes_shards_of_another_size(folders: list[Path], tmp_path: Path, shard_tokens: int) -> None:
    """They have the size that was asked for. A single folder keeps the record of its source."""
    check_whole(tmp_path / "all", folders, index := merge(folders, tmp_path / "all", shard_tokens))
    for split in index.splits.values():
        sizes = [shard.tokens for shard in split.shards]
        assert set(sizes[:-1]) <= {shard_tokens} and 0 < sizes[-1] <= shard_tokens
    before = load_index(folders[0])
    after = merge(folders[:1], tmp_path / "one", shard_tokens)
    assert (after.source, after.ledger, after.rules) == (before.source, before.ledger, before.rules)
    assert {place for split in SPLITS for place in places_of(tmp_path / "one", split)} > {f"{tmp_path}/web.jsonl:2"}


def test_folder_of_an_earlier_version_gets_new_shards(tmp_path: Path) -> None:
    """New shards make one of the present version of it, with its tokens and checksums."""
    index = merge([EARLIER], tmp_path / "new", MEMBER_TOKENS)
    assert load_index(EARLIER).earlier is not None and load_index(tmp_path / "new") == index and index.earlier is None
    for split in SPLITS:
        assert np.array_equal(read_all(tmp_path / "new", split), read_all(EARLIER, split))


def test_command_merges_and_appends(folders: list[Path], tmp_path: Path, command: Command) -> None:
    """A run on a folder that has grown is not resumed; its own data is what it was."""
    out = tmp_path / "all"
    status, printed, errors = command("data", "merge", out, *folders[:2])
    assert (status, errors.count("wrote")) == (0, 0) and printed.endswith(f"wrote {out}\n"), errors
    before = load_index(out)
    assert command("data", "merge", out, folders[2])[2].endswith("exists: remove it or choose another name\n")
    status, printed, _ = command("data", "merge", out, folders[2], "--append")
    assert status == 0 and check_ledger(load_index(out)).written > check_ledger(before).written
    assert load_index(out).fingerprint("train") != before.fingerprint("train")
    status, printed, _ = command("data", "report", out, "--verify")
    assert f"kind merge, folders ['{folders[0]}', '{folders[1]}', '{folders[2]}']\n" in printed
    assert status == 0 and re.search(r"books\.jsonl +91 ", printed)
    assert command("data", "where", out, "--document", 0)[0] == 0
    assert "--append" in command("data", "merge", out, folders[2], "--append", "--shard-tokens", 9)[2]


def test_folders_without_ledger_are_merged(tmp_path: Path) -> None:
    """Their splits are merged, too; the result has no tables either."""
    parts = [tmp_path / f"{seed}" for seed in range(2)]
    for seed, part in enumerate(parts):
        prepare_addition(AdditionTask(digits=2, per_cell=5, seed=seed), part, lambda tokens: None)
    index = merge(parts, tmp_path / "both")
    assert not index.ledger and not index.document_tables
    for split in SPLITS:
        assert np.array_equal(read_all(tmp_path / "both", split), np.concatenate([read_all(part, split) for part in parts]))
