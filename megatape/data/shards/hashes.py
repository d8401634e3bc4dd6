"""Hashes of files, index entries and documents, and the assignment of documents to splits by hash."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from megatape.errors import MissingPath, UserError


def content_hash(*parts: Any) -> str:
    """Hash JSON values, or dataclasses containing JSON values, with sha256."""
    return hashlib.sha256(json.dumps(parts, default=vars, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return a file's sha256 as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, sha256: str) -> None:
    """Check a data directory's file against the hash in its index.

    Raises:
        MissingPath: The file is missing.
        UserError: The file has another hash.
    """
    if not path.is_file():
        raise MissingPath(f"{path}: not found, the index lists it: copy it again or re-run the preparation")
    actual = file_sha256(path)
    if actual != sha256:
        raise UserError(
            f"{path}: corrupted, sha256 is {actual}, the index says {sha256}: copy it again or re-run the preparation"
        )


def document_hash(content: bytes) -> bytes:
    """Return a 128-bit hash: 64 bits of BLAKE2b, resisting deliberate collisions, and 64 bits of XXH3."""
    return hashlib.blake2b(content, digest_size=8).digest() + xxhash.xxh3_64_digest(content)


def table_hashes(digests: Sequence[bytes]) -> list[int]:
    """Return the part of each document's hash stored in its table row: the 64 bits of BLAKE2b."""
    return np.frombuffer(b"".join(digests), "<u8")[::2].tolist()


def splits_of(hashes: Sequence[int], validation_share: float) -> list[str]:
    """Return each document's split, decided by its hash alone.

    So duplicates land in the same split, in any order and from any source.

    Args:
        hashes: Result of `table_hashes`.
        validation_share: The validation split's share of documents.
    """
    end = validation_share * 2**64
    splits = []
    for number in hashes:
        if number < end:
            splits.append("validation")
        else:
            splits.append("train")
    return splits


def split_of(content: bytes, validation_share: float) -> str:
    """Return one document's split, decided by its content alone."""
    return splits_of(table_hashes([document_hash(content)]), validation_share)[0]
