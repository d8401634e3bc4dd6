"""Checks data directories before merging them: one tokenizer, and no document twice."""

from collections.abc import Sequence

import numpy as np

from megatape.data.derived.input_folder import InputFolder
from megatape.data.shards.entries import SPLITS
from megatape.errors import UserError, flag


def check_inputs(folders: Sequence[InputFolder], links_shards: bool) -> None:
    """Raise UserError if a folder cannot be merged with the first one, or if data are given twice.

    Args:
        folders: Folders to merge.
        links_shards: Whether to link shards instead of writing new ones.
    """
    for folder in folders:
        _check_fits(folder, folders[0], links_shards)
    _check_given_once(folders)


def _check_fits(folder: InputFolder, first: InputFolder, links_shards: bool) -> None:
    index = folder.index
    tokenizer = index.tokenizer
    first_tokenizer = first.index.tokenizer
    if index.answers:
        raise UserError(f"{folder.path} holds prompts and answers, which are not merged: train on both by `data.mixture`")
    if index.earlier and links_shards:
        raise UserError(
            f"{folder.path} is of an earlier version of the format: give {flag('shard_tokens')}, by which shards are new"
        )
    if tokenizer != first_tokenizer:
        raise UserError(
            f"{folder.path} has another tokenizer (sha256 {tokenizer.sha256[:12]}) or other special tokens than {first.path} "
            f"({first_tokenizer.sha256[:12]}): prepare one of them with the tokenizer of the other"
        )
    has_ledger = bool(index.ledger)
    has_tables = bool(index.document_tables)
    if has_ledger != bool(first.index.ledger) or has_tables != bool(first.index.document_tables):
        raise UserError(
            f"only one of {first.path} and {folder.path} has a ledger and tables of documents, which prepared data have and "
            "imported ones lack: train on both by `data.mixture`"
        )


def _check_given_once(folders: Sequence[InputFolder]) -> None:
    # Fingerprint of an original directory -> folders with its documents.
    known: dict[str, list[InputFolder]] = {}
    for folder in folders:
        fingerprints = dict.fromkeys(origin.fingerprint for origin in folder.origins)
        for fingerprint in fingerprints:
            for earlier in known.get(fingerprint, []):
                if _overlap(earlier, folder):
                    raise UserError(
                        f"{folder.path} has the same data as {earlier.path}, or a part of them: give each folder once"
                    )
        for fingerprint in fingerprints:
            known.setdefault(fingerprint, []).append(folder)


def _overlap(one: InputFolder, other: InputFolder) -> bool:
    """Whether two folders originating from the same directory, such as two subsets of it, share a document.

    Documents are identified by text and location, so duplicates in the directory count as different documents. Folders are
    assumed to overlap if tables are missing or have no hashes.
    """
    if not (one.index.merged and other.index.merged):
        # One folder is the whole directory.
        return True
    for split in SPLITS:
        try:
            common = np.intersect1d(one.text_hashes(split), other.text_hashes(split))
        except UserError:
            # Without tables or hashes, the folders may overlap.
            return True
        if common.size and not one.locations(split, common).isdisjoint(other.locations(split, common)):
            return True
    return False
