"""Hashes of files, index entries and documents, and the assignment of documents to splits by hash."""

import hashlib
import json
import math
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


def table_hashes(digests: Sequence[bytes]) -> np.ndarray:
    """Return the part of each document's hash stored in its table row: the 64 bits of BLAKE2b, uint64 [documents]."""
    return np.frombuffer(b"".join(digests), "<u8")[::2]


def are_held_out(hashes: np.ndarray, validation_share: float) -> np.ndarray:
    """Return whether each document is in the validation split, decided by its hash alone, bool [documents].

    So duplicates land in the same split, in any order and from any source.

    Args:
        hashes: Result of `table_hashes`.
        validation_share: The validation split's share of documents.
    """
    # Integers are compared exactly. numpy would round them to compare them with a float.
    end = math.ceil(validation_share * 2**64)
    if end >= 2**64:
        return np.ones(hashes.size, bool)
    return hashes < np.uint64(end)


def split_of(content: bytes, validation_share: float) -> str:
    """Return one document's split, decided by its content alone."""
    if are_held_out(table_hashes([document_hash(content)]), validation_share).item():
        return "validation"
    return "train"
