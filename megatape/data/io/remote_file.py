"""A file at a URL as a stream that survives its server's failures.

It gives the file from its first to its last byte, or an error. After any interruption (a reset, a server that is busy or
silent, a body that ends early) it resumes at the next byte, after a wait. A server that cannot begin there is read from the
start again up to it, and a file that has changed in between is refused. fsspec opens the connections; its files do not resume
or refuse so, which is why this stream is kept by hand.
"""

import io
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

from megatape.errors import MissingPath, PathError, UserError

LOG = logging.getLogger(__name__)

Result = TypeVar("Result")

BLOCK_BYTES = 8 * 2**20  # requested at a time from object storage
SKIP_BYTES = 2**20  # over which reading on is cheaper than a new request
PROGRESS_BYTES = 2**16  # After this many bytes, earlier failures no longer count.
SLOW_BYTES = 2**16  # fewer within Retries.timeout are a failure, so that a server cannot send a byte a second for years
BUSY = {408, 425, 429, 500, 502, 503, 504}  # answers of servers that may serve later
FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, NotImplementedError)

# Errors of fsspec's clients (botocore, httpx, google.auth, huggingface_hub) that are no OSError, by the names of their classes
# or of bases: these packages need not be installed.
CONNECTION = {"ConnectionError", "HTTPClientError", "TransportError"}
CREDENTIALS = re.compile("Credential|ProfileNotFound|TokenRetrieval")
REMEDIES = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE; for a public bucket FSSPEC_S3_ANON=true",
    "gs": "run `gcloud auth application-default login`; for a public bucket set FSSPEC_GS_TOKEN=anon",
    "hf": "run `hf auth login`, or set HF_TOKEN",
}


@dataclass(frozen=True)
class Retries:
    """How long a server may fail.

    Attributes:
        count: Number of failures without PROGRESS_BYTES in between; one more is an error.
        wait: Seconds before the first new attempt, twice as many before each further one.
        longest_wait: Maximum seconds before an attempt, unless the server asks for more by Retry-After.
        longest_asked_wait: Maximum seconds that a server may ask for. More is an error.
        timeout: Seconds of silence that are a failure, and of waiting for fewer than SLOW_BYTES.
    """

    count: int = 7
    wait: float = 1.0
    longest_wait: float = 30.0
    longest_asked_wait: float = 600.0
    timeout: float = 60.0


RETRIES = Retries()


class RemoteError(PathError):
    """A file that cannot be read, or not completely, whatever the number of attempts."""


def is_http(url: str) -> bool:
    """Whether a web server has it."""
    return url.startswith(("http://", "https://"))


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it. Raises UserError, or ModuleNotFoundError for a package it needs."""
    import fsspec  # with its implementations half a second, for which local files need not wait

    options: dict[str, Any] = {}
    if is_http(url):
        from aiohttp import ClientTimeout

        # Bytes as they are stored: not compressed on the way, nor unpacked because a server says that a file is compressed.
        options["client_kwargs"] = {
            "headers": {"Accept-Encoding": "identity"},
            "auto_decompress": False,
            "timeout": ClientTimeout(total=None, sock_connect=RETRIES.timeout, sock_read=RETRIES.timeout),
            "trust_env": True,
        }
    try:
        system, path = Attempts(url).run(lambda: fsspec.url_to_fs(url, use_listings_cache=False, **options))
    except ImportError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ImportError) else None
        raise ModuleNotFoundError(f"{url}: {error}", name=missing) from error
    return system, path


def within(url: str, seconds: float) -> dict[str, float]:
    """Argument of fsspec's functions that ends a request to a web server after so long, whatever comes meanwhile."""
    return {"timeout": seconds} if is_http(url) else {}


class Attempts:
    """Work on a URL that is tried again when it fails for a reason that may pass."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.retries = RETRIES
        self.failures = 0

    def run(self, work: Callable[[], Result], where: str = "") -> Result:
        """The result of `work`. where: for messages. Raises FileNotFoundError or RemoteError."""
        while True:
            try:
                return work()
            except Exception as error:  # of fsspec's many clients
                reason = self._transient(error)
                if reason is None:
                    raise
                self.failures += 1
                if self.failures > self.retries.count:
                    raise RemoteError(
                        f"{self.url}: {reason}{where}, after {self.failures} attempts: check the network and the address, and "
                        "give the same command again"
                    ) from error
                wait = min(self.retries.wait * 2 ** (self.failures - 1), self.retries.longest_wait)
                asked = retry_after(error)
                if asked > self.retries.longest_asked_wait:
                    raise RemoteError(
                        f"{self.url}: {reason}{where} and asks to wait {asked:,.0f} s: give the same command again after that "
                        "time"
                    ) from error
                wait = max(wait, asked)
                LOG.warning("%s: %s%s; trying again in %.0f s", self.url, reason, where, wait)
            time.sleep(wait)

    def _transient(self, error: Exception) -> str | None:
        """The reason of a transient error, None for another one. Raises RemoteError for one that needs other words."""
        from aiohttp import ClientError, ClientResponseError, InvalidURL, RedirectClientError, TooManyRedirects

        if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # fsspec hides so why a web server does not give a size
        if isinstance(error, RedirectClientError | TooManyRedirects):
            raise RemoteError(
                f"{self.url}: the server redirects without end, or to what no web server has ({error})"
            ) from error
        if isinstance(error, ClientResponseError):
            reason = f"the server answers {error.status} {error.message}"
            if error.status == 404:
                raise MissingPath(f"{self.url}: {reason}") from error
            if error.status not in BUSY:
                raise RemoteError(f"{self.url}: {reason}") from error
            return reason
        client_made = type(error).__module__ != "builtins" or isinstance(error, OSError | EOFError | ValueError)
        if isinstance(error, (UserError, ImportError, InvalidURL, *FINAL)) or not client_made:
            return None
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        names = {kind.__name__ for kind in type(error).__mro__}
        status = _status(error)
        if isinstance(error, PermissionError) or status in (401, 403) or CREDENTIALS.search(type(error).__name__):
            remedy = REMEDIES.get(self.url.partition("://")[0], "give the credentials that this storage needs")
            raise RemoteError(f"{self.url}: access denied ({reason}): {remedy}") from error
        passes = isinstance(error, OSError | ClientError | EOFError) or names & CONNECTION or status in BUSY
        if not passes or "OfflineModeIsEnabled" in names or (status or 503) not in BUSY:
            raise RemoteError(f"{self.url}: {reason}") from error
        return f"no answer for {self.retries.timeout:g} s" if isinstance(error, TimeoutError) else reason


def retry_after(error: Exception) -> float:
    """Return the waiting time that a server asks for in an error's response, by the header Retry-After.

    Args:
        error: Error of aiohttp, httpx or botocore, or the FileNotFoundError that fsspec raises instead.

    Returns:
        Seconds to wait; 0 if the server does not ask for any.
    """
    response: Any = getattr(error, "response", None)
    headers: Any = getattr(error, "headers", None) or getattr(response, "headers", None)
    if isinstance(response, dict):
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
    if headers is None:
        return retry_after(error.__cause__) if isinstance(error.__cause__, Exception) else 0.0
    names = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    value = names.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    try:
        seconds = parsedate_to_datetime(value).timestamp() - time.time()
    except (TypeError, ValueError):
        return 0.0
    return max(0.0, seconds)


def _status(error: Exception) -> int | None:
    """The status of the answer that an error of botocore, httpx or gcsfs is about."""
    response: Any = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    if isinstance(response, dict):
        return cast(int | None, response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    return getattr(response, "status_code", getattr(error, "code", None))


class RemoteFile(io.RawIOBase):
    """A file at a URL. size: in bytes. version: differs if the content does, empty if the server tells none.

    Raises OSError when it is opened or read.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._stream: Any = None  # of fsspec
        self._streamed = 0  # position of the stream
        self._rest = b""  # Bytes received before the last failure and not read yet.
        self._rest_begin = 0  # Position of these bytes.
        # bytes, and seconds for them, since the speed was last looked at
        self._came = 0
        self._waited = 0.0
        self._attempts = Attempts(url)
        self._system, self._path = file_system(url)
        self.size, self.version = self._attempts.run(self._announced)
        self._tag = "" if is_http(url) else self.version
        self._position = 0  # of what is read next
        self._since_failure = 0  # Bytes received since the last failure.

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, begin + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self.size - self._position)
        if wanted <= 0:
            return 0
        content = self._attempts.run(lambda: self._read(wanted), f" at byte {self._position:,} of {self.size:,}")
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def close(self) -> None:
        self._drop()
        super().close()

    def _read(self, wanted: int) -> bytes:
        """Up to `wanted` bytes at the position, at least one."""
        place = self._position - self._rest_begin
        if 0 <= place < len(self._rest):
            return self._rest[place : place + wanted]
        try:
            if self._stream is None or not 0 <= self._position - self._streamed <= SKIP_BYTES:
                self._drop()
                self._open()
            while self._streamed < self._position:
                self._take(min(self._position - self._streamed, BLOCK_BYTES))
            return self._take(wanted)
        except BaseException:
            if self._since_failure >= PROGRESS_BYTES:
                self._attempts.failures = 0
            self._since_failure = 0
            self._drop()
            raise

    def _take(self, wanted: int) -> bytes:
        began = time.monotonic()
        limit = self._attempts.retries.timeout
        try:
            content: bytes = self._stream.read(wanted)
        except Exception:
            self._rest = self._received()
            self._rest_begin = self._streamed
            self._since_failure += len(self._rest)
            raise
        if not content:
            raise EOFError("the body ends too early")
        self._streamed += len(content)
        self._since_failure += len(content)
        self._came += len(content)
        self._waited += time.monotonic() - began
        if self._waited > limit:
            if self._came < SLOW_BYTES:
                raise ConnectionError(f"only {self._came:,} bytes in {self._waited:.0f} s")
            self._came = 0
            self._waited = 0.0
        return content

    def _received(self) -> bytes:
        """Return the last bytes of a failed response of a web server: aiohttp raises the error before returning them."""
        if not is_http(self.url):
            return b""
        from fsspec.asyn import sync

        async def take() -> bytes:
            body = self._stream.r.content
            body.set_exception(None)
            received: bytes = body.read_nowait(-1)
            return received

        with suppress(Exception):  # If this fails, the bytes are requested again.
            return cast(bytes, sync(self._system.loop, take))
        return b""

    def _open(self) -> None:
        """Open a stream at the position, or before it."""
        if is_http(self.url):
            headers = {"Range": f"bytes={self._position}-"} if self._position else {}
            self._stream = self._system.open(self._path, block_size=0, size=self.size, headers=headers)
            self._streamed = self._check(self._stream.r)
        else:
            self._stream = self._system.open(self._path, block_size=BLOCK_BYTES)
            self._same(int(self._stream.size), self._ukey())
            self._streamed = self._stream.seek(self._position)

    def _check(self, response: Any) -> int:
        """The position at which the body of a web server's response begins. Raises RemoteError if it is of another file."""
        headers = response.headers
        if headers.get("Content-Encoding", "identity") != "identity" and not self.url.partition("?")[0].endswith(".gz"):
            raise RemoteError(f"{self.url}: the server compresses it on the way ({headers['Content-Encoding']}): download it")
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", "")) if response.status == 206 else None
        if response.status == 206 and not found:
            raise RemoteError(f"{self.url}: the server sends a part without saying which: download it")
        begin, size = found.groups() if found else ("0", headers.get("Content-Length", "*"))
        if int(begin) > self._position:
            raise RemoteError(f"{self.url}: the server sends bytes from {begin} on, not from {self._position}: download it")
        self._same(self.size if size == "*" else int(size), headers.get("ETag") or headers.get("Last-Modified") or "")
        return int(begin)

    def _same(self, size: int, tag: str) -> None:
        if size != self.size or (tag and self._tag and tag != self._tag):
            raise RemoteError(
                f"{self.url}: has changed since it was opened, or its server does not know it: {size:,} bytes, {self.size:,} "
                f"before (version {tag or 'unknown'}, {self._tag or 'unknown'} before)"
            )
        self._tag = self._tag or tag

    def _announced(self) -> tuple[int, str]:
        """Size and version. A web server's tag of a HEAD request may differ from that of its answers with content."""
        info = self._system.info(self._path, **within(self.url, self._attempts.retries.timeout))
        if info["size"] is None:
            raise RemoteError(f"{self.url}: the server does not say how long it is: download it")
        tag = info.get("ETag") or info.get("Last-Modified") or "" if is_http(self.url) else self._ukey()
        return int(info["size"]), str(tag)

    def _ukey(self) -> str:
        return str(self._system.ukey(self._path))

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._came = 0
        self._waited = 0.0
