"""Reads files of Arrow with a text column (Feather 2, and the files of Hugging Face datasets), in a child process.

Nothing in these files tells how large a packed column becomes, and pyarrow crashes on inconsistent offsets. So the memory of
the process is limited, and all offsets are checked before use. The files have no checksums: a changed letter is not noticed.
"""

import io
import resource
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from megatape.data.counts import RecordCounts
from megatape.data.io.files import open_file
from megatape.data.sources.document import Document
from megatape.data.sources.isolated_reader import IsolatedReader, corrupted
from megatape.data.sources.source import Source
from megatape.data.sources.text_columns import check_text_column, documents_of_rows
from megatape.data.sources.units import Unit
from megatape.errors import UserError
from megatape.utils.text.units import format_bytes

# Start of a file with a footer. Others are streams.
MAGIC = b"ARROW1"
# End of a complete stream.
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
# Memory of a process, beyond that after its imports.
MEMORY_BYTES = 4 * 2**30


class ArrowFiles(IsolatedReader):
    """Files named .arrow or .feather."""

    file_format = "Arrow"
    patterns = ("*.arrow", "*.feather")
    has_fields = True

    def read_here(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        _limit_memory()
        (name,) = unit.inputs
        try:
            with open_file(name) as file:
                is_stream = file.read(len(MAGIC)) != MAGIC
                if is_stream and not _ends_stream(file):
                    raise corrupted(name, self, "it does not end like a complete file or stream")
                yield from _rows(name, file, is_stream, source, counts)
        except MemoryError as error:
            raise UserError(
                f"{name}: a batch of rows takes more than {format_bytes(MEMORY_BYTES)}: a decompression bomb or a corrupted "
                "file. Remove it, or write it again with smaller batches"
            ) from error


@cache
def _limit_memory() -> None:
    """Limit the memory of this process, a child that reads files and nothing else."""
    used_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = used_pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _rows(name: str, file: BinaryIO, is_stream: bool, source: Source, counts: RecordCounts) -> Iterator[Document]:
    schema = _open(file, is_stream).schema
    read_fields = {source.text_field, "url"}
    for path in source.fields:
        read_fields |= {path, path.partition(".")[0]}
    included = [number for number, column in enumerate(schema.names) if column in read_fields]
    row = 0
    offset = 0
    for batch in _batches(_open(file, is_stream, included), is_stream):
        check_text_column(name, schema, source)
        batch.validate(full=True)
        yield from documents_of_rows(batch, f"{name}:row ", row, source, counts)
        row += batch.num_rows
        counts.read_bytes += file.tell() - offset
        offset = file.tell()
    counts.read_bytes += file.seek(0, io.SEEK_END) - offset


def _ends_stream(file: BinaryIO) -> bool:
    """Whether a stream has its end. If it is cut between two batches, it looks complete to pyarrow."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - len(STREAM_END), 0))
    return file.read() == STREAM_END


def _open(file: BinaryIO, is_stream: bool, included: list[int] | None = None) -> Any:
    """Open a file or a stream from its start. `included`: numbers of the columns to read."""
    from pyarrow import ipc

    options = ipc.IpcReadOptions(included_fields=included, use_threads=False)
    file.seek(0)
    if is_stream:
        return ipc.open_stream(file, options=options)
    return ipc.open_file(file, options=options)


def _batches(reader: Any, is_stream: bool) -> Iterator[Any]:
    if is_stream:
        yield from reader
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)
