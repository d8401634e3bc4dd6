"""Reads files compressed by bzip2 or xz. Unlike the standard library, it limits memory and raises a single type of error."""

import bz2
import io
import lzma
from collections.abc import Callable
from typing import Any, BinaryIO

from megatape.data.io.raw_stream import RawStream

CHUNK_BYTES = 2**18
# Memory limit of xz's decoder. The highest preset, -9, takes 65 MiB.
MAX_XZ_BYTES = 192 * 2**20
XZ_PADDING = b"\0"
DECODERS: dict[str, Callable[[], Any]] = {
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_BYTES),
}


class CompressedStreamError(Exception):
    """A compressed file is truncated or corrupted, or needs too much memory."""


class CompressedStreams(RawStream):
    """Decompressed content of one or several consecutive streams.

    Seeking backwards reads the file from its start again.

    Args:
        stored: Compressed file.
        kind: Compression, bzip2 or xz.

    Raises:
        CompressedStreamError: The file is truncated or corrupted. Raised by all methods that read.
    """

    def __init__(self, stored: BinaryIO, kind: str) -> None:
        super().__init__()
        self._stored = stored
        self._new_decoder: Callable[[], Any] = DECODERS[kind]
        self._restart()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position.

        Args:
            offset: Number of bytes.
            whence: Origin of the offset: start or current position.
        """
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the size is unknown before the end is read")
        target = offset
        if whence == io.SEEK_CUR:
            target += self._position
        if target < self._position:
            self._stored.seek(0)
            self._restart()
        while self._position < target:
            if not self.read(min(CHUNK_BYTES, target - self._position)):
                break
        return self._position

    def _next_bytes(self, max_bytes: int) -> bytes:
        content = b""
        while not content:
            if self._decoder.eof and not self._begin_stream():
                break
            content = self._decode(max_bytes)
        return content

    def _restart(self) -> None:
        self._decoder = self._new_decoder()
        # Compressed bytes read beyond the end of the last stream.
        self._pending = b""
        self._position = 0

    def _decode(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` of the current stream, or nothing if the decoder needs more input or the stream ends."""
        stored = b""
        if self._decoder.needs_input:
            stored = self._pending or self._stored.read(CHUNK_BYTES)
            self._pending = b""
            if not stored:
                raise CompressedStreamError("it ends too early")
        try:
            content: bytes = self._decoder.decompress(stored, max_bytes)
        except (lzma.LZMAError, OSError, ValueError) as error:
            # bz2 raises OSError.
            reason = str(error)
            if "Memory usage limit" in reason:
                reason = f"it takes more than {MAX_XZ_BYTES >> 20} MiB of memory to unpack"
            raise CompressedStreamError(reason) from error
        return content

    def _begin_stream(self) -> bool:
        """Begin the next stream. Returns False at the end of the file."""
        is_xz = isinstance(self._decoder, lzma.LZMADecompressor)
        following: bytes = self._decoder.unused_data
        while True:
            if is_xz:
                following = following.lstrip(XZ_PADDING)
            if following:
                break
            following = self._stored.read(CHUNK_BYTES)
            if not following:
                return False
        self._decoder = self._new_decoder()
        self._pending = following
        return True
