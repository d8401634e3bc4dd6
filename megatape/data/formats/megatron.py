"""Megatron-LM's indexed data sets: PATH.bin with token ids, and PATH.idx with the ends of sequences and documents.

PATH.idx, little-endian (megatron/core/datasets/indexed_dataset.py):

    bytes 9        MMIDIDX and two zeros
    uint64         version, 1
    uint8          type of the ids, a key of DTYPES
    uint64         number of sequences S
    uint64         number of documents plus one, D
    int32 [S]      tokens in each sequence
    int64 [S]      each sequence's byte offset in PATH.bin
    int64 [D]      each document's first sequence, and S

A document is one sequence, unless it was split into sentences. Sequences must follow each other without gaps, as every writer
leaves them.
"""

import os
import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from megatape.data.formats.token_format import TokenFormat
from megatape.errors import UserError
from megatape.utils.files.files import create_file, open_regular

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES: dict[int, np.dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
UINT16_CODE = 8
INT32_CODE = 4
LENGTH = np.dtype("<i4")
OFFSET = np.dtype("<i8")


class MegatronIndex(NamedTuple):
    """Content of PATH.idx. The arrays are mapped.

    Attributes:
        dtype: Token id type.
        lengths: Tokens in each sequence, [S].
        offsets: Each sequence's byte offset in PATH.bin, [S].
        ends: Each document's first sequence, and S, [D].
    """

    dtype: np.dtype
    lengths: np.ndarray
    offsets: np.ndarray
    ends: np.ndarray


class Megatron(TokenFormat):
    """PATH.bin and PATH.idx. Users give either name, or PATH."""

    piece = "document"

    def read(self, path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
        prefix = path
        if path.suffix in (".bin", ".idx"):
            prefix = path.with_suffix("")
        ids_path = _beside(prefix, "bin")
        index = _beside(prefix, "idx")
        stored, lengths, offsets, ends = _read_index(index)
        # Byte offset of the next document.
        offset = 0
        with open_regular(ids_path) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if ends[0] != 0:
                raise _corrupted(index, "its first document does not begin with the first sequence")
            for first, end in pairwise(ends):
                if not first <= end <= lengths.size:
                    raise _corrupted(index, f"a document ends with sequence {end:,} of {lengths.size:,}, after {first:,}")
                size = 0
                for sequence in range(first, end):
                    if offsets[sequence] != offset + size or lengths[sequence] < 0:
                        raise _corrupted(index, f"sequence {sequence:,} does not begin where the one before it ends")
                    size += int(lengths[sequence]) * stored.itemsize
                content = b""
                if offset + size <= num_bytes:
                    content = file.read(size)
                if len(content) < size:
                    end_offset = offset + size
                    raise UserError(f"{ids_path}: truncated, {index.name} has {end_offset:,} bytes and more: copy both again")
                offset += size
                yield np.frombuffer(content, stored)
            if ends[-1] < lengths.size or file.read(1):
                raise _corrupted(index, f"its documents end after {ends[-1]:,} of {lengths.size:,} sequences, {offset:,} bytes")

    def write(self, path: Path, documents: Iterable[np.ndarray], dtype: np.dtype) -> None:
        # The format has no uint32.
        code = INT32_CODE
        if dtype.itemsize == 2:
            code = UINT16_CODE
        lengths = array("i")
        with create_file(_beside(path, "bin")) as file:
            for ids in documents:
                file.write(np.ascontiguousarray(ids, DTYPES[code]).data)
                lengths.append(ids.size)
        sizes = np.array(lengths, LENGTH)
        offsets = (np.cumsum(sizes, dtype=OFFSET) - sizes) * DTYPES[code].itemsize
        with create_file(_beside(path, "idx")) as index:
            index.write(HEADER.pack(MAGIC, VERSION, code, sizes.size, sizes.size + 1))
            for numbers in (sizes, offsets, np.arange(sizes.size + 1, dtype=OFFSET)):
                index.write(numbers.data)


def _read_index(path: Path) -> MegatronIndex:
    with open_regular(path) as file:
        header = file.read(HEADER.size)
        if not header.startswith(MAGIC) or len(header) < HEADER.size:
            raise UserError(
                f"{path}: no index of Megatron-LM, which begins with MMIDIDX: give the name of a .bin and .idx that "
                "tools/preprocess_data.py wrote (the older formats `lazy` and `cached` are not read)"
            )
        content = np.memmap(file, np.uint8, "r").view(np.ndarray)
    _, version, code, num_sequences, num_ends = HEADER.unpack(header)
    if version != VERSION or code not in DTYPES:
        raise UserError(
            f"{path}: version {version} with ids of type {code}: what is read is version {VERSION} with integers, types "
            f"{', '.join(map(str, DTYPES))}"
        )
    offsets = HEADER.size + LENGTH.itemsize * num_sequences
    ends = offsets + OFFSET.itemsize * num_sequences
    size = ends + OFFSET.itemsize * num_ends
    if content.size != size or not num_ends:
        raise _corrupted(
            path, f"{content.size:,} bytes, {num_sequences:,} sequences and {num_ends:,} ends of documents take {size:,}"
        )
    return MegatronIndex(
        dtype=DTYPES[code],
        lengths=content[HEADER.size : offsets].view(LENGTH),
        offsets=content[offsets:ends].view(OFFSET),
        ends=content[ends:].view(OFFSET),
    )


def _beside(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(f"{prefix.name}.{suffix}")


def _corrupted(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: corrupted: {reason}: copy it again")
