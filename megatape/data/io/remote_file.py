"""Reads a file at a URL as a stream that survives failures of the server.

The stream returns all bytes of the file, or raises an error. After an interruption (a reset, a busy or silent server, a body
ending early) it waits and resumes at the next byte. If the server cannot start there, the stream reads the file from its start
again up to that byte. A file changing in between is an error. fsspec opens the connections, but its own files neither resume
nor notice changes.
"""

import io
import re
import time
from contextlib import suppress
from typing import Any, NamedTuple, cast

from megatape.data.io.raw_stream import RawStream
from megatape.data.io.retries import Attempts, RemoteError, is_http

# Bytes requested at a time from object storage.
BLOCK_BYTES = 8 * 2**20
# Up to this distance, reading on is cheaper than a new request.
SKIP_BYTES = 2**20
# Earlier failures no longer count after receiving this many bytes.
PROGRESS_BYTES = 2**16
# Receiving fewer bytes within Retries.timeout is a failure. Otherwise a server could send a byte a second for years.
SLOW_BYTES = 2**16
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class RemotePath(NamedTuple):
    """Path on a server, with fsspec's file system of the server."""

    system: Any
    path: str


class RemoteState(NamedTuple):
    """State of a file, as its server announces it.

    Attributes:
        size: Size in bytes.
        version: Version of the content; empty if the server gives none.
    """

    size: int
    version: str


def remote_path(url: str) -> RemotePath:
    """Return the file system and path of a URL.

    Raises:
        UserError: The protocol is unknown.
        ModuleNotFoundError: The package of the protocol is not installed.
    """
    # The import takes half a second, so local files do without it.
    import fsspec

    attempts = Attempts(url)
    options: dict[str, Any] = {}
    if is_http(url):
        from aiohttp import ClientTimeout

        timeout = attempts.retries.timeout
        # Read bytes as stored: neither compressed on the way, nor unpacked because the server calls a file compressed.
        options["client_kwargs"] = {
            "headers": {"Accept-Encoding": "identity"},
            "auto_decompress": False,
            "timeout": ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout),
            "trust_env": True,
        }
    try:
        system, path = attempts.run(lambda: fsspec.url_to_fs(url, use_listings_cache=False, **options))
    except ImportError as error:
        missing = None
        if isinstance(error.__cause__, ImportError):
            missing = error.__cause__.name
        raise ModuleNotFoundError(f"{url}: {error}", name=missing) from error
    return RemotePath(system, path)


def time_limit(url: str, seconds: float) -> dict[str, float]:
    """Return the argument for fsspec's functions that limits a request to a web server to this time."""
    if not is_http(url):
        return {}
    return {"timeout": seconds}


class RemoteFile(RawStream):
    """A file at a URL.

    Attributes:
        size: Size in bytes.
        version: Version of the content; empty if the server gives none.

    Raises:
        OSError: The file cannot be opened or, later, read.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        # fsspec's stream, and its position.
        self._stream: Any = None
        self._stream_position = 0
        # Bytes received before the last failure and not read yet, and their position.
        self._rescued = b""
        self._rescued_begin = 0
        # Bytes received, and seconds spent waiting for them, since the last speed check.
        self._num_received = 0
        self._waited = 0.0
        # Bytes received since the last failure.
        self._since_failure = 0
        self._attempts = Attempts(url)
        self._system, self._path = remote_path(url)
        self.size, self.version = self._attempts.run(self._announced)
        # A web server's tag for a HEAD request may differ from its tag for the content.
        self._tag = ""
        if not is_http(url):
            self._tag = self.version

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, begin + offset)
        return self._position

    def close(self) -> None:
        self._drop()
        super().close()

    def _next_bytes(self, max_bytes: int) -> bytes:
        max_bytes = min(max_bytes, self.size - self._position)
        if max_bytes <= 0:
            return b""
        return self._attempts.run(lambda: self._read(max_bytes), f" at byte {self._position:,} of {self.size:,}")

    def _read(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` at the position, at least one."""
        offset = self._position - self._rescued_begin
        if 0 <= offset < len(self._rescued):
            return self._rescued[offset : offset + max_bytes]
        try:
            if self._stream is None or not 0 <= self._position - self._stream_position <= SKIP_BYTES:
                self._drop()
                self._open()
            while self._stream_position < self._position:
                self._receive(min(self._position - self._stream_position, BLOCK_BYTES))
            return self._receive(max_bytes)
        except BaseException:
            if self._since_failure >= PROGRESS_BYTES:
                self._attempts.failures = 0
            self._since_failure = 0
            self._drop()
            raise

    def _receive(self, max_bytes: int) -> bytes:
        """Read from fsspec's stream, at least one byte. Raises an error if it ends or is too slow."""
        start = time.monotonic()
        try:
            content: bytes = self._stream.read(max_bytes)
        except Exception:
            self._rescued = self._received_before_failure()
            self._rescued_begin = self._stream_position
            self._since_failure += len(self._rescued)
            raise
        if not content:
            raise EOFError("the body ends too early")
        self._stream_position += len(content)
        self._since_failure += len(content)
        self._num_received += len(content)
        self._waited += time.monotonic() - start
        if self._waited > self._attempts.retries.timeout:
            if self._num_received < SLOW_BYTES:
                raise ConnectionError(f"only {self._num_received:,} bytes in {self._waited:.0f} s")
            self._num_received = 0
            self._waited = 0.0
        return content

    def _received_before_failure(self) -> bytes:
        """Return the last bytes of a web server's failed response. aiohttp raises the error without returning them."""
        if not is_http(self.url):
            return b""
        from fsspec.asyn import sync

        async def take() -> bytes:
            body = self._stream.r.content
            body.set_exception(None)
            received: bytes = body.read_nowait(-1)
            return received

        # If this fails, the next attempt requests the bytes again.
        with suppress(Exception):
            return cast(bytes, sync(self._system.loop, take))
        return b""

    def _open(self) -> None:
        """Open a stream at the position, or before it."""
        if is_http(self.url):
            headers = {}
            if self._position:
                headers["Range"] = f"bytes={self._position}-"
            self._stream = self._system.open(self._path, block_size=0, size=self.size, headers=headers)
            self._stream_position = self._check_response(self._stream.r)
        else:
            self._stream = self._system.open(self._path, block_size=BLOCK_BYTES)
            self._check_same(int(self._stream.size), self._ukey())
            self._stream_position = self._stream.seek(self._position)

    def _check_response(self, response: Any) -> int:
        """Return the position at which the body of a web server's response begins.

        Raises:
            RemoteError: The file has changed, or the body is compressed or begins after the position of this stream.
        """
        headers = response.headers
        encoding = headers.get("Content-Encoding", "identity")
        if encoding != "identity" and not self.url.partition("?")[0].endswith(".gz"):
            raise RemoteError(f"{self.url}: the server compresses it on the way ({encoding}): download it")
        begin = "0"
        size = headers.get("Content-Length", "*")
        if response.status == 206:
            content_range = CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
            if content_range is None:
                raise RemoteError(f"{self.url}: the server sends a part without saying which: download it")
            begin, size = content_range.groups()
        if int(begin) > self._position:
            raise RemoteError(f"{self.url}: the server sends bytes from {begin} on, not from {self._position}: download it")
        if size == "*":
            size = self.size
        tag = headers.get("ETag") or headers.get("Last-Modified") or ""
        self._check_same(int(size), tag)
        return int(begin)

    def _check_same(self, size: int, tag: str) -> None:
        """Raise RemoteError if the file has changed. Remembers its tag."""
        if size != self.size or (tag and self._tag and tag != self._tag):
            raise RemoteError(
                f"{self.url}: has changed since it was opened, or its server does not know it: {size:,} bytes, {self.size:,} "
                f"before (version {tag or 'unknown'}, {self._tag or 'unknown'} before)"
            )
        self._tag = self._tag or tag

    def _announced(self) -> RemoteState:
        info = self._system.info(self._path, **time_limit(self.url, self._attempts.retries.timeout))
        if info["size"] is None:
            raise RemoteError(f"{self.url}: the server does not say how long it is: download it")
        if is_http(self.url):
            tag = info.get("ETag") or info.get("Last-Modified") or ""
        else:
            tag = self._ukey()
        return RemoteState(int(info["size"]), str(tag))

    def _ukey(self) -> str:
        return str(self._system.ukey(self._path))

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._num_received = 0
        self._waited = 0.0
