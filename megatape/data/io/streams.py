"""Reads files compressed by bzip2 or xz. Unlike the standard library, it limits memory and raises a single type of error."""

import bz2
import io
import lzma
from collections.abc import Callable
from typing import Any, BinaryIO

CHUNK_BYTES = 2**18
MAX_XZ_BYTES = 192 * 2**20  # Memory limit of xz's decoder. Its highest preset, -9, takes 65 MiB.
XZ_PADDING = b"\0"


class CompressedStreamError(Exception):
    """A compressed file is truncated or corrupted, or needs too much memory."""


class CompressedStreams(io.RawIOBase):
    """Content of one or more consecutive compressed streams.

    Seeking backwards reads the file from its beginning again.

    Args:
        stored: The compressed file.
        kind: bzip2 or xz.

    Raises:
        CompressedStreamError: The file is truncated or corrupted. Raised by all methods that read.
    """

    def __init__(self, stored: BinaryIO, kind: str) -> None:
        self._stored = stored
        self._new_decoder: Callable[[], Any] = DECODERS[kind]
        self._restart()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position.

        Args:
            offset: Number of bytes.
            whence: Origin of the offset: the beginning or the current position.
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

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content and len(buffer):
            if self._decoder.eof and not self._begin_stream():
                return 0
            content = self._decode(len(buffer))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def _restart(self) -> None:
        self._decoder = self._new_decoder()
        self._pending = b""  # Compressed bytes read beyond the end of the last stream.
        self._position = 0

    def _decode(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` of the current stream; none if the decoder needs more input or the stream ends."""
        stored = b""
        if self._decoder.needs_input:
            stored = self._pending or self._stored.read(CHUNK_BYTES)
            self._pending = b""
            if not stored:
                raise CompressedStreamError("it ends too early")
        try:
            content: bytes = self._decoder.decompress(stored, max_bytes)
        except (lzma.LZMAError, OSError, ValueError) as error:  # bz2 raises OSError.
            reason = str(error)
            if "Memory usage limit" in reason:
                reason = f"it takes more than {MAX_XZ_BYTES >> 20} MiB of memory to unpack"
            raise CompressedStreamError(reason) from error
        return content

    def _begin_stream(self) -> bool:
        """Begin the next stream. Returns False at the end of the file."""
        is_xz = isinstance(self._decoder, lzma.LZMADecompressor)
        rest: bytes = self._decoder.unused_data
        while True:
            if is_xz:
                rest = rest.lstrip(XZ_PADDING)
            if rest:
                break
            rest = self._stored.read(CHUNK_BYTES)
            if not rest:
                return False
        self._decoder = self._new_decoder()
        self._pending = rest
        return True


DECODERS: dict[str, Callable[[], Any]] = {
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_BYTES),
}
