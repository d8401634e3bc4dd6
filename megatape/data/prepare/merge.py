"""Several data directories as one: their shards and tables of documents are linked, or shards of another size written.

All tokens are read once, which verifies them and counts how often each one occurs.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from megatape.data.prepare.unit import Summary, UnitTotals
from megatape.data.shards.index import SPLITS, Index, MergedFolder, check_file, check_ledger, load_index, save_index
from megatape.data.shards.reader import Report, SplitReader
from megatape.data.shards.writer import MEMBER_TOKENS, SplitWriter
from megatape.data.sources.source import CorpusCounts
from megatape.errors import UserError, path_errors
from megatape.files import link_file, locked, new_folder, sync

KIND = "merge"
LOCK = "append.lock"


@path_errors()
def merge(
    folders: Sequence[Path], output: Path, shard_tokens: int | None = None, progress: Report = lambda tokens: None
) -> Index:
    """Write the data directory `output` with the documents of others in their order, all or nothing.

    Args:
        folders: Data directories with one tokenizer.
        output: New folder.
        shard_tokens: Write new shards of at most so many tokens, in the present version of the format; None: link them.
        progress: Called with the tokens that are read.

    Returns:
        The index.

    Raises:
        UserError, FileNotFoundError: A folder is missing or corrupted, is there twice, or does not fit the first one.
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
def append(folders: Sequence[Path], directory: Path, progress: Report = lambda tokens: None) -> Index:
    """Add the documents of other data directories to `directory`, in place.

    Its files stay as they are, and its index is replaced at the end, so that who has it open keeps its data. After an error
    it is what it was. Arguments and errors: see `merge`.
    """
    load_index(directory)
    with locked(directory / LOCK), TemporaryDirectory(dir=directory) as new:
        index = _merged([directory, *folders], Path(new), None, progress, in_place=True)
        listed = {*load_index(directory).files}
        added = sorted(os.listdir(new))
        if repeated := listed.intersection(added):
            raise UserError(f"{directory} lists {min(repeated)} already, which would be replaced: merge into a new folder")
        for name in added:
            Path(new, name).rename(directory / name)
        sync(directory)
        save_index(index, directory)
    return index


def _merged(folders: Sequence[Path], new: Path, shard_tokens: int | None, progress: Report, in_place: bool = False) -> Index:
    """Make the files of all folders in `new`, but those of the first one where it is changed in place. Returns the index."""
    indices = [load_index(folder) for folder in folders]
    _check(folders, indices, links=shard_tokens is None)
    first, total, records, writers = indices[0], UnitTotals(), list[MergedFolder](), dict[str, SplitWriter]()
    if shard_tokens is not None:
        member_tokens = min(shard_tokens, MEMBER_TOKENS)
        sizes = {"member_tokens": member_tokens, "members_per_shard": shard_tokens // member_tokens}
        writers = {
            split: SplitWriter(new, split, first.tokenizer.vocab_size, first.tokenizer.eos_id, **sizes) for split in SPLITS
        }
    for folder, index in zip(folders, indices, strict=True):
        token_counts = {split: np.zeros(first.tokenizer.vocab_size, np.int64) for split in SPLITS}
        for split, counts in token_counts.items():
            for ids in SplitReader(folder, index, split).members(progress):
                counts += np.bincount(ids, minlength=counts.size)
                if writers:
                    writers[split].add(ids, text_bytes=0)
        tables = {split: index.document_tables.get(split, []) for split in SPLITS}
        for table in chain.from_iterable(tables.values()):
            check_file(folder / table.file, table.sha256)
        part = Summary(index.splits, tables, CorpusCounts(inputs=index.ledger))
        kept = in_place and not records
        total.add(part if kept else _linked(folder, part, new, len(records), with_shards=not writers), token_counts)
        records += records_of(folder, index)
    splits = total.splits()
    merged = replace(
        first,
        source={"kind": KIND, "folders": [each.folder for each in records]} if len(folders) > 1 else first.source,
        validation_share=first.validation_share if len({index.validation_share for index in indices}) == 1 else 0.0,
        splits=splits | {split: replace(splits[split], shards=writer.close().shards) for split, writer in writers.items()},
        counts=dict(sum((Counter(index.counts) for index in indices), Counter())),
        document_tables=total.tables if first.document_tables else {},
        ledger=total.counts.inputs,
        rules=first.rules if all(index.rules == first.rules for index in indices) else [],
        document_files=first.document_files if in_place else [],
        merged=records,
        earlier=None,
    )
    if merged.ledger:
        check_ledger(merged)
    return merged


def _check(folders: Sequence[Path], indices: Sequence[Index], links: bool) -> None:
    """Raise UserError for a folder that cannot be merged with the first one, or data that are there twice."""
    first, known = indices[0], dict[str, Path]()
    for folder, index in zip(folders, indices, strict=True):
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
            if earlier := known.get(record.fingerprint):
                raise UserError(f"{folder} has the same data as {earlier}, or a part of them: give each folder once")
            known[record.fingerprint] = folder


def records_of(folder: Path, index: Index) -> list[MergedFolder]:
    """Where the documents of a folder come from: from itself, or the folders of which it was merged."""
    documents = {name: split.documents for name, split in index.splits.items()}
    return index.merged or [MergedFolder(str(folder), index.fingerprint("train"), index.source, index.rules, documents)]


def _linked(folder: Path, part: Summary, new: Path, number: int, with_shards: bool) -> Summary:
    """Link the tables of a folder, and its shards, in `new`. Returns its part with their names, which have its number."""

    def link(split: str, entry: Any) -> Any:
        name = f"{split}-{number:04d}{entry.file.removeprefix(split)}"
        link_file(folder / entry.file, new / name)
        return replace(entry, file=name)

    splits = part.splits
    if with_shards:
        splits = {name: replace(split, shards=[link(name, shard) for shard in split.shards]) for name, split in splits.items()}
    tables = {name: [link(name, table) for table in of_split] for name, of_split in part.tables.items()}
    return replace(part, splits=splits, tables=tables)
