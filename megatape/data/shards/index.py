"""Writes, reads and checks `index.json` of a data directory."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from megatape.data.document_entries import INDEX_FILE
from megatape.data.io.local_folder import PARTIAL
from megatape.data.shards.entries import SPLITS, Index, TokenizerEntry, token_dtype
from megatape.data.shards.hashes import content_hash
from megatape.data.shards.index_formats.index_columns import open_columns, save_columns
from megatape.data.shards.index_formats.legacy import upgrade_splits
from megatape.data.shards.layout import covered_bytes, shard_bytes
from megatape.data.shards.ledger import check_ledger
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import MissingPath, UserError, content_errors, path_errors
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.json_files import json_content, read_json
from megatape.utils.values.validation import as_type

FORMAT = "megatape-shards"
VERSION = 4
# Version 2 added tokenizer companions, version 3 prompts and answers. legacy.py converts them.
EARLIER_VERSIONS = (1, 2, 3)
# Enough for four million shards (3e14 tokens), or for four million members in earlier versions.
MAX_INDEX_BYTES = 2**30
# Fields omitted from the file if empty.
OPTIONAL_FIELDS = ("answers", "counts", "document_tables", "ledger", "rules", "document_files", "merged", "earlier")
REMEDY = "copy it again or re-run the preparation"


def build_index(directory: Path, tokenizer: Tokenizer, **content: Any) -> Index:
    """Complete a data directory by writing the tokenizer's files and `index.json` beside its shards.

    Args:
        directory: Folder with the shards.
        tokenizer: Tokenizer of the token ids.
        content: Other fields of Index: `source`, `validation_share`, `splits`, and optional ones.

    Raises:
        UserError: A document is missing from the ledger or counted twice.
    """
    store_tokenizer(tokenizer, directory)
    index = Index(TokenizerEntry.of(tokenizer), token_dtype(tokenizer.vocab_size).name, **content)
    if index.ledger:
        check_ledger(index)
    save_index(index, directory)
    return index


def store_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write a tokenizer's files into a folder, replacing those of an interrupted attempt."""
    for name, content in tokenizer.files.items():
        write_atomically(directory / name, content)


def save_index(index: Index, directory: Path) -> None:
    """Write `index.json` into `directory`. Raises UserError if `load_index` would not accept it."""
    content = {"format": FORMAT, "version": VERSION, **asdict(index)}
    if not index.tokenizer.companions:
        del content["tokenizer"]["companions"]
    if index.fingerprint_version == 1:
        del content["fingerprint_version"]
    for name in OPTIONAL_FIELDS:
        if not content[name]:
            del content[name]
    for counts in content.get("ledger", {}).values():
        if not counts["skipped_files"]:
            del counts["skipped_files"]
            del counts["skipped_bytes"]
    path = directory / INDEX_FILE
    encoded = json_content(content, str(path), indent=1, max_bytes=MAX_INDEX_BYTES) + b"\n"
    write_atomically(path, encoded)
    save_columns(index, directory, encoded)


@path_errors()
def open_index(directory: Path) -> Index:
    """Read the index of a data directory for training. The shards of a large one stay on disk. Raises like `load_index`."""
    return open_columns(directory) or load_index(directory)


@path_errors()
def load_index(directory: Path) -> Index:
    """Read `index.json` of a data directory.

    Raises:
        MissingPath: There is no index.
        UserError: The index has another format or version, or is inconsistent.
    """
    path = directory / INDEX_FILE
    if not path.is_file():
        if Path(str(directory).removesuffix(PARTIAL) + PARTIAL).is_dir():
            raise MissingPath(f"{directory} is still being prepared: give the same command again, which resumes it")
        raise MissingPath(f"{path}: not found: {directory} is not a data directory, make one with `megatape prepare corpus`")
    with content_errors(f"{path}: not JSON", REMEDY):
        content = read_json(path, max_bytes=MAX_INDEX_BYTES)
    _check_version(content, path)
    with content_errors(f"{path}: corrupted", REMEDY):
        if content["version"] != VERSION:
            content = _upgrade(content)
        index = as_type(content, Index)
        _check(index)
    return index


def _check_version(content: Any, path: Path) -> None:
    stored = None
    if isinstance(content, dict):
        stored = (content.get("format"), content.get("version"))
    known = [(FORMAT, version) for version in (*EARLIER_VERSIONS, VERSION)]
    if stored not in known:
        raise UserError(
            f"{path}: format and version are {stored}, this version of MegaTAPE reads {', '.join(map(str, known))}: prepare "
            "the data again, or read it with the version that wrote it"
        )


def _upgrade(content: dict[str, Any]) -> dict[str, Any]:
    """Convert an index from an earlier version."""
    entry = as_type(content.get("tokenizer"), TokenizerEntry)
    splits, member_hashes = upgrade_splits(content.get("splits"), token_dtype(entry.vocab_size).itemsize)
    fingerprints = {name: content_hash(entry.sha256, content["splits"][name]) for name in splits}
    earlier = {"member_hashes": member_hashes, "fingerprints": fingerprints}
    return {**content, "splits": splits, "earlier": earlier}


def _check(index: Index) -> None:
    """Check everything that readers rely on to stay within the files."""
    dtype = token_dtype(index.tokenizer.vocab_size)
    if index.tokenizer.file in index.tokenizer.companions:
        raise UserError(f"{index.tokenizer.file} is both the tokenizer's file and a companion of it")
    if index.splits.keys() != set(SPLITS):
        raise UserError(f"splits are {', '.join(index.splits)}, not {', '.join(SPLITS)}")
    if index.dtype != dtype.name:
        raise UserError(f"dtype is {index.dtype}, vocab_size {index.tokenizer.vocab_size} needs {dtype.name}")
    if index.answers and index.answers.keys() != index.splits.keys():
        raise UserError(f"answers has {', '.join(index.answers)}, not every split")
    for name, count in Counter(index.files).items():
        if count > 1 or name == INDEX_FILE:
            raise UserError(f"{name} is listed as two files")
    least_bytes = shard_bytes
    if index.earlier is not None:
        # Shards of earlier versions have no checksums.
        least_bytes = covered_bytes
    for name, split in index.splits.items():
        for shard in split.shards:
            size = least_bytes(shard.tokens, shard.member_tokens, dtype.itemsize)
            if shard.bytes < size:
                raise UserError(f"{shard.file}: its {shard.tokens} tokens take {size} bytes, it has {shard.bytes}")
        tokens = sum(shard.tokens for shard in split.shards)
        if tokens != split.tokens:
            raise UserError(f"{name}: tokens is {split.tokens}, its shards hold {tokens}")
