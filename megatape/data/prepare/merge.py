"""Merges data directories: links their shards and tables of documents, or writes shards of another size.

All tokens are read once, which verifies them and counts the occurrences of each one.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.counts import CorpusCounts
from megatape.data.document_entries import INDEX_FILE, MergedFolder
from megatape.data.prepare.summary import Summary, UnitTotals
from megatape.data.shards.entries import SPLITS, Index, Split
from megatape.data.shards.hashes import check_file, file_sha256
from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.reader import OnTokens, SplitReader
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.writer import MEMBER_TOKENS, SplitWriter
from megatape.errors import UserError, content_errors, path_errors
from megatape.utils.atomic import new_folder, write_atomically
from megatape.utils.files import link_file, sync
from megatape.utils.full_disk import name_path
from megatape.utils.json_files import read_json
from megatape.utils.locks import locked

KIND = "merge"
# Temporary names in a directory that others are appended to.
LOCK = "append.lock"
STAGING = "append.partial"
# File in STAGING with the appended folders and the hashes of their indices.
COMMAND = "command.json"


@path_errors()
def merge(
    folders: Sequence[Path], output: Path, shard_tokens: int | None = None, progress: OnTokens = lambda tokens: None
) -> Index:
    """Write the data directory `output` with the documents of others, in order, all or nothing.

    Args:
        folders: Data directories with one tokenizer.
        output: New folder.
        shard_tokens: Maximum number of tokens of new shards, in the present version of the format. None: link the shards.
        progress: Called repeatedly with the number of tokens read since the last call.

    Returns:
        The index.

    Raises:
        UserError, FileNotFoundError: A folder is missing, corrupted or given twice, or does not fit the first one.
        FileExistsError: `output` exists.
    """
    with new_folder(output) as new:
        index = _merged(folders, new, shard_tokens, progress)
        for name, sha256 in index.tokenizer.files.items():
            check_file(folders[0] / name, sha256)
            link_file(folders[0] / name, new / name)
        save_index(index, new)
    return index


@path_errors()
def append(folders: Sequence[Path], directory: Path, progress: OnTokens = lambda tokens: None) -> Index:
    """Add the documents of other data directories to `directory`, in place.

    Existing files do not change, and the index is replaced at the end, so a run that has the directory open can keep reading.
    After an error, the directory is the same as before. If the process is killed when all files are on disk, the next call
    finishes the append. If that call names the same folders, it does nothing else.

    Args:
        folders: Data directories with the tokenizer of `directory`.
        directory: Data directory to change.
        progress: Called repeatedly with the number of tokens read since the last call.

    Returns:
        The index.

    Raises:
        UserError, FileNotFoundError: A folder is missing, corrupted or given twice, or does not fit the first one.
    """
    load_index(directory)
    with locked(directory / LOCK, remove=True):
        command = []
        for folder in folders:
            # Merging reports folders without an index.
            if (folder / INDEX_FILE).is_file():
                command.append([os.path.realpath(folder), file_sha256(folder / INDEX_FILE)])
        if _finish(directory) == command:
            return load_index(directory)
        staging = directory / STAGING
        staging.mkdir()
        try:
            index = _merged([directory, *folders], staging, None, progress, in_place=True)
            listed = set(load_index(directory).files)
            repeated = listed.intersection(os.listdir(staging))
            if repeated:
                raise UserError(f"{directory} lists {min(repeated)} already, which would be replaced: merge into a new folder")
            write_atomically(staging / COMMAND, json.dumps(command).encode())
            # From here on, the next append finishes a killed one.
            save_index(index, staging)
            sync(staging)
            _finish(directory)
        except BaseException as error:
            _undo(directory)
            name_path(error, directory)
            raise
    return index


def _finish(directory: Path) -> list[Any] | None:
    """Move the files and the index of an append into place, or remove them if the append was killed before writing all.

    Returns:
        Folders of the append and hashes of their indices; None if there was no append to finish.
    """
    staging = directory / STAGING
    if staging.is_symlink():
        raise UserError(f"{staging} is a link, through which nothing is written: remove it")
    if not (staging / INDEX_FILE).is_file():
        shutil.rmtree(staging, ignore_errors=True)
        return None
    with content_errors(f"{staging}: corrupted", "remove it, and append again"):
        command: list[Any] = read_json(staging / COMMAND)
    load_index(staging)
    for name in sorted(os.listdir(staging)):
        if name not in (COMMAND, INDEX_FILE):
            (staging / name).rename(directory / name)
    sync(directory)
    (staging / INDEX_FILE).rename(directory / INDEX_FILE)
    sync(directory)
    shutil.rmtree(staging, ignore_errors=True)
    return command


def _undo(directory: Path) -> None:
    """Remove the files of an append whose index is not in place yet."""
    staging = directory / STAGING
    with suppress(OSError, UserError):
        added = {*load_index(staging).files} - {*load_index(directory).files}
        for name in added:
            (directory / name).unlink(missing_ok=True)
    shutil.rmtree(staging, ignore_errors=True)


def _merged(folders: Sequence[Path], new: Path, shard_tokens: int | None, progress: OnTokens, in_place: bool = False) -> Index:
    """Make the files of the merged directory, except its index and tokenizer.

    Args:
        folders: Data directories.
        new: Folder for the files.
        shard_tokens: Maximum number of tokens of new shards. None: link the shards.
        progress: Called repeatedly with the number of tokens read since the last call.
        in_place: Whether the first folder is changed in place, so its files stay.

    Returns:
        The index.
    """
    indices = [load_index(folder) for folder in folders]
    _check(folders, indices, links=shard_tokens is None)
    first = indices[0]
    writers: dict[str, SplitWriter] = {}
    if shard_tokens is not None:
        writers = _shard_writers(new, first, shard_tokens)
    total = UnitTotals()
    records: list[MergedFolder] = []
    for folder, index in zip(folders, indices, strict=True):
        token_counts = _read_all(folder, index, writers, progress)
        tables = {split: index.document_tables.get(split, []) for split in SPLITS}
        for table in chain.from_iterable(tables.values()):
            check_file(folder / table.file, table.sha256)
        part = Summary(index.splits, tables, CorpusCounts(inputs=index.ledger))
        if not in_place or records:
            part = _linked(folder, part, new, len(records), with_shards=not writers)
        total.add(part, token_counts)
        records += records_of(folder, index)

    splits = total.splits()
    for split, writer in writers.items():
        splits[split] = replace(splits[split], shards=writer.close().shards)
    merged = _merged_index(indices, total, splits, records)
    if in_place:
        merged = replace(merged, document_files=first.document_files)
    if merged.ledger:
        check_ledger(merged)
    return merged


def _shard_writers(new: Path, index: Index, shard_tokens: int) -> dict[str, SplitWriter]:
    member_tokens = min(shard_tokens, MEMBER_TOKENS)
    writers = {}
    for split in SPLITS:
        writers[split] = SplitWriter(
            new,
            split,
            index.tokenizer.vocab_size,
            index.tokenizer.eos_id,
            member_tokens=member_tokens,
            members_per_shard=shard_tokens // member_tokens,
        )
    return writers


def _read_all(folder: Path, index: Index, writers: dict[str, SplitWriter], progress: OnTokens) -> dict[str, np.ndarray]:
    """Read and verify all tokens of a folder, and write them if there are writers.

    Returns:
        Number of occurrences of each token by split, int64 [vocab_size].
    """
    token_counts = {}
    for split in SPLITS:
        counts = np.zeros(index.tokenizer.vocab_size, np.int64)
        for ids in SplitReader(folder, index, split).members(progress):
            counts += np.bincount(ids, minlength=counts.size)
            if writers:
                writers[split].add(ids, text_bytes=0)
        token_counts[split] = counts
    return token_counts


def _merged_index(indices: Sequence[Index], total: UnitTotals, splits: dict[str, Split], records: list[MergedFolder]) -> Index:
    """Return the index of a merged directory: facts that are the same in all folders stay."""
    first = indices[0]
    source = first.source
    if len(indices) > 1:
        source = {"kind": KIND, "folders": [record.folder for record in records]}
    validation_share = first.validation_share
    if any(index.validation_share != validation_share for index in indices):
        validation_share = 0.0
    rules = first.rules
    if any(index.rules != rules for index in indices):
        rules = []
    document_tables = {}
    if first.document_tables:
        document_tables = total.tables
    counts = Counter[str]()
    for index in indices:
        counts += Counter(index.counts)
    return replace(
        first,
        source=source,
        validation_share=validation_share,
        splits=splits,
        counts=dict(counts),
        document_tables=document_tables,
        ledger=total.counts.inputs,
        rules=rules,
        document_files=[],
        merged=records,
        earlier=None,
        fingerprint_version=2,
    )


def _check(folders: Sequence[Path], indices: Sequence[Index], links: bool) -> None:
    """Raise UserError for a folder that cannot be merged with the first one, or data given twice."""
    first = indices[0]
    # Fingerprint of a directory -> numbers of the folders with its documents.
    known: dict[str, list[int]] = {}
    for number, (folder, index) in enumerate(zip(folders, indices, strict=True)):
        if index.answers:
            raise UserError(f"{folder} holds prompts and answers, which are not merged: train on both by `data.mixture`")
        if index.earlier and links:
            raise UserError(f"{folder} is of an earlier version of the format: give `shard_tokens`, by which shards are new")
        if index.tokenizer != first.tokenizer:
            raise UserError(
                f"{folder} has another tokenizer (sha256 {index.tokenizer.sha256[:12]}) or other special tokens than "
                f"{folders[0]} ({first.tokenizer.sha256[:12]}): prepare one of them with the tokenizer of the other"
            )
        if (bool(index.ledger), bool(index.document_tables)) != (bool(first.ledger), bool(first.document_tables)):
            raise UserError(
                f"only one of {folders[0]} and {folder} has a ledger and tables of documents, which prepared data have and "
                "imported ones lack: train on both by `data.mixture`"
            )
        for record in records_of(folder, index):
            earlier = known.setdefault(record.fingerprint, [])
            for other in earlier:
                if other != number and _overlap(folders[other], indices[other], folder, index):
                    raise UserError(f"{folder} has the same data as {folders[other]}, or a part of them: give each folder once")
            if number not in earlier:
                earlier.append(number)


def _overlap(folder: Path, index: Index, other: Path, other_index: Index) -> bool:
    """Whether two folders with documents of the same directory, such as two subsets of it, share a document.

    Documents are identified by text and place, so duplicates in the directory count as different documents. If the tables of a
    folder are missing or have no hashes, the folders are assumed to overlap.
    """
    if not (index.merged and other_index.merged):
        # One folder is the whole directory.
        return True
    for split in SPLITS:
        try:
            hashes = [_hashes(folder, split), _hashes(other, split)]
        except UserError:
            # Tables are missing or have no hashes.
            return True
        common = np.intersect1d(hashes[0], hashes[1])
        if common.size:
            places = [_places(each, split, common) for each in (folder, other)]
            if not places[0].isdisjoint(places[1]):
                return True
    return False


def _hashes(folder: Path, split: str) -> np.ndarray:
    """Return the hashes of the texts of a split's documents, uint64."""
    return np.concatenate([np.empty(0, np.uint64), *StoredSplit(folder, split).tables.hashes()])


def _places(folder: Path, split: str, hashes: np.ndarray) -> set[tuple[int, str]]:
    """Return hash and place of the documents of a split whose hash is in `hashes`."""
    found: set[tuple[int, str]] = set()
    for rows, _ in StoredSplit(folder, split).tables.each():
        of_rows = rows["hash"].to_numpy()
        chosen = np.isin(of_rows, hashes)
        found.update(zip(of_rows[chosen].tolist(), rows["place"].filter(chosen).to_pylist(), strict=True))
    return found


def records_of(folder: Path, index: Index) -> list[MergedFolder]:
    """Return the origin of a folder's documents: the folder itself, or the folders from which it was merged."""
    if index.merged:
        return index.merged
    documents = {name: split.documents for name, split in index.splits.items()}
    return [MergedFolder(str(folder), index.fingerprint("train"), index.source, index.rules, documents)]


def _linked(folder: Path, part: Summary, new: Path, number: int, with_shards: bool) -> Summary:
    """Link the tables of a folder, and its shards, into `new`.

    Args:
        folder: Data directory.
        part: Its part of the merged directory.
        new: Folder for the links.
        number: Number in the names of the links.
        with_shards: Whether to link shards.

    Returns:
        The part with the names of the links.
    """

    def link(split: str, entry: Any) -> Any:
        name = f"{split}-{number:04d}{entry.file.removeprefix(split)}"
        link_file(folder / entry.file, new / name)
        return replace(entry, file=name)

    splits = dict(part.splits)
    if with_shards:
        for name, split in part.splits.items():
            splits[name] = replace(split, shards=[link(name, shard) for shard in split.shards])
    tables = {}
    for name, entries in part.tables.items():
        tables[name] = [link(name, table) for table in entries]
    return replace(part, splits=splits, tables=tables)
