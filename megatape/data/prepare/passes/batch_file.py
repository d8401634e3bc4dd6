"""File of document batches. Each has a checksum of its own, which is verified before pyarrow reads the batch.

A batch is a header of two uint64, little-endian, and its content in the stream format of Arrow. The header has the number of
bytes in the content and their checksum, which depends on the number of the batch as well.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash

from megatape.data.cleaning.stored.corruption import corrupted_first_pass
from megatape.data.io.columns import pack_rows, unpack_rows
from megatape.data.prepare.passes.document_batch import DocumentBatch
from megatape.utils.files.files import open_regular

HEADER = struct.Struct("<QQ")


def write_batch(file: BinaryIO, batch: DocumentBatch, number: int) -> None:
    """Append a batch to a file.

    Args:
        file: Open file.
        batch: Batch to write.
        number: Number of batches in the file so far.
    """
    content = pack_rows(batch.rows)
    file.write(HEADER.pack(len(content), xxhash.xxh3_64_intdigest(content, number)))
    file.write(content)


def stored_batches(path: Path) -> Iterator[DocumentBatch]:
    """Yield the batches in a file. A missing last batch is not noticed here.

    Raises:
        UserError: A batch is not what was written.
        FileNotFoundError: The file is missing.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        number = 0
        while file.tell() < size:
            yield DocumentBatch(unpack_rows(_content(file, number, size, path)))
            number += 1


def _content(file: BinaryIO, number: int, size: int, path: Path) -> bytes:
    """Return the verified content of the next batch, in a file of `size` bytes."""
    header = file.read(HEADER.size)
    if len(header) == HEADER.size:
        num_bytes, checksum = HEADER.unpack(header)
        if num_bytes <= size - file.tell():
            content = file.read(num_bytes)
            if xxhash.xxh3_64_intdigest(content, number) == checksum:
                return content
    raise corrupted_first_pass(path)
