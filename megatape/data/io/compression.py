"""Recognizes and reads compressed files."""

import io
import re
import sys
from gzip import BadGzipFile
from typing import Any, BinaryIO, cast

from isal import igzip, isal_zlib

from megatape.data.counts import RecordCounts
from megatape.data.io.files import suffix
from megatape.data.io.streams import CompressedStreamError, CompressedStreams
from megatape.errors import UserError

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, ZstdError, ZstdFile
else:
    from backports.zstd import CompressionParameter, ZstdError, ZstdFile

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
# First bytes of compressed files.
MAGIC_BYTES = re.compile(rb"(?P<gzip>\x1f\x8b)|(?P<zstd>\x28\xb5\x2f\xfd)|(?P<xz>\xfd7zXZ\0)|(?P<bzip2>BZh[1-9]1AY&SY)")
# First bytes to read: they tell the compression, and whether there are checksums.
HEADER_BYTES = 10
# Offset of the flags in a zstd frame.
ZSTD_FLAGS = 4
ZSTD_CHECKSUM_FLAG = 0b100
# Offset of the kind of checksum in an xz stream. Kind 0 is no checksum.
XZ_CHECK = 7
BUFFER_BYTES = 2**20
# Errors raised by reading corrupted files.
CORRUPTED: tuple[type[Exception], ...] = (
    EOFError,
    BadGzipFile,
    cast(Any, isal_zlib.error),
    ZstdError,
    CompressedStreamError,
)


def compressed_patterns(extension: str) -> tuple[str, ...]:
    """Return patterns for compressed files with an extension, such as *.jsonl.gz for .jsonl."""
    return tuple(f"*{extension}{compression}" for compression in COMPRESSIONS)


def is_compressed(path: str) -> bool:
    """Whether a file is compressed, judging by its name. Compressed files cannot be read from the middle."""
    return suffix(path) in COMPRESSIONS


def decompressed(stored: BinaryIO, path: str, counts: RecordCounts | None = None) -> BinaryIO:
    """Return the decompressed content of a file.

    Args:
        stored: Open file.
        path: File path or URL.
        counts: Counts to update if the file has no checksums, or None.

    Raises:
        UserError: The compression does not match the file's name.
        Exception: One of CORRUPTED, also raised by reading: the file is empty, truncated or corrupted.
    """
    kind = COMPRESSIONS.get(suffix(path))
    header = stored.read(HEADER_BYTES)
    if kind and not header:
        # igzip would read an empty file without an error.
        raise EOFError("it is empty")
    magic = MAGIC_BYTES.match(header)
    if magic and magic.lastgroup != kind:
        extension = next(extension for extension, name in COMPRESSIONS.items() if name == magic.lastgroup)
        raise UserError(f"{path}: it is compressed by {magic.lastgroup}, but its name does not end in {extension}: rename it")
    if kind and counts is not None and not _has_checksums(kind, header):
        counts.add_unverified(path)
    stored.seek(0)
    if kind is None:
        return stored

    content: Any
    if kind == "gzip":
        content = igzip.open(stored, "rb")
    elif kind == "zstd":
        content = ZstdFile(stored)
    else:
        content = CompressedStreams(stored, kind)
    # The decoders' own buffers are small.
    return io.BufferedReader(content, BUFFER_BYTES)


def _has_checksums(kind: str, header: bytes) -> bool:
    """Whether a compressed file has checksums, judging by its first bytes. gzip and bzip2 always have them."""
    if kind == "zstd" and len(header) > ZSTD_FLAGS:
        return bool(header[ZSTD_FLAGS] & ZSTD_CHECKSUM_FLAG)
    if kind == "xz" and len(header) > XZ_CHECK:
        return header[XZ_CHECK] != 0
    return True


def corruption_error(path: str, kind: str, error: Exception) -> UserError:
    """Return the error about a corrupted file.

    Args:
        path: File path or URL.
        kind: Format, such as "gzip".
        error: Exception raised by reading the file.
    """
    # zstd raises the same class for all errors, so its message decides.
    if "requires too much memory" in str(error):
        return UserError(
            f"{path}: its zstd frames take more than 128 MiB to unpack: pack it again without --long, by unzstd --long=31 and "
            "zstd"
        )
    return UserError(f"{path}: corrupted or truncated {kind} file ({error}): download or copy it again")


def zstd_file(path: str) -> BinaryIO:
    """Create a zstd file to write, with checksums that readers verify."""
    return cast(BinaryIO, ZstdFile(path, "wb", options={CompressionParameter.checksum_flag: 1}))
