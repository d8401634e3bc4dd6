"""Retries work on a server after transient errors. Other errors get a message saying what to do."""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

from megatape.errors import MissingPath, PathError, UserError

LOG = logging.getLogger(__name__)

Result = TypeVar("Result")

# Statuses after which a later attempt may succeed.
BUSY = {408, 425, 429, 500, 502, 503, 504}
# Errors that further attempts cannot avoid.
FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, NotImplementedError)

# Errors of fsspec's clients (botocore, httpx, google.auth, huggingface_hub) that are no OSError. They are recognized by the
# names of their classes or base classes, because these packages may not be installed.
CONNECTION = {"ConnectionError", "HTTPClientError", "TransportError"}
CREDENTIALS = re.compile("Credential|ProfileNotFound|TokenRetrieval")
REMEDIES = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE; for a public bucket FSSPEC_S3_ANON=true",
    "gs": "run `gcloud auth application-default login`; for a public bucket set FSSPEC_GS_TOKEN=anon",
    "hf": "run `hf auth login`, or set HF_TOKEN",
}


@dataclass(frozen=True)
class Retries:
    """Limits on failures of a server.

    Attributes:
        count: Maximum number of failures without progress in between.
        wait: Seconds before the first new attempt, doubled before each further one.
        longest_wait: Maximum seconds before an attempt, unless the server asks for more by Retry-After.
        longest_asked_wait: Maximum seconds that a server may ask for.
        timeout: Seconds without an answer, or with very slow ones, that count as a failure.
    """

    count: int = 7
    wait: float = 1.0
    longest_wait: float = 30.0
    longest_asked_wait: float = 600.0
    timeout: float = 60.0


RETRIES = Retries()


class RemoteError(PathError):
    """A file cannot be read completely, even with further attempts."""


def is_http(url: str) -> bool:
    """Whether a URL belongs to a web server."""
    return url.startswith(("http://", "https://"))


class Attempts:
    """Repeats work on a URL after transient errors.

    Attributes:
        url: URL, for messages.
        retries: Limits on failures.
        failures: Failures so far. Callers reset it after progress.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.retries = RETRIES
        self.failures = 0

    def run(self, work: Callable[[], Result], where: str = "") -> Result:
        """Return the result of `work`.

        Args:
            work: Function to call until it succeeds.
            where: Place in the file, for messages.

        Raises:
            FileNotFoundError: The file does not exist.
            RemoteError: The error is permanent, or there were too many.
        """
        while True:
            try:
                return work()
            except Exception as error:  # fsspec has many clients.
                reason = self._transient_reason(error)
                if reason is None:
                    raise
                self.failures += 1
                wait = self._next_wait(error, reason, where)
                LOG.warning("%s: %s%s; trying again in %.0f s", self.url, reason, where, wait)
            time.sleep(wait)

    def _next_wait(self, error: Exception, reason: str, where: str) -> float:
        """Return the seconds to wait after a failure. Raises RemoteError after too many failures or before too long a wait."""
        if self.failures > self.retries.count:
            raise RemoteError(
                f"{self.url}: {reason}{where}, after {self.failures} attempts: check the network and the address, and "
                "give the same command again"
            ) from error
        asked = retry_after(error)
        if asked > self.retries.longest_asked_wait:
            raise RemoteError(
                f"{self.url}: {reason}{where} and asks to wait {asked:,.0f} s: give the same command again after that time"
            ) from error
        wait = min(self.retries.wait * 2 ** (self.failures - 1), self.retries.longest_wait)
        return max(wait, asked)

    def _transient_reason(self, error: Exception) -> str | None:
        """Return the reason for a transient error, or None for an error to raise unchanged.

        Raises:
            RemoteError, MissingPath: The error is permanent. The message says what to do.
        """
        from aiohttp import ClientError, ClientResponseError, InvalidURL, RedirectClientError, TooManyRedirects

        if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
            # fsspec hides the reason why a web server does not give a size.
            error = error.__cause__
        if isinstance(error, RedirectClientError | TooManyRedirects):
            raise RemoteError(
                f"{self.url}: the server redirects without end, or to what no web server has ({error})"
            ) from error
        if isinstance(error, ClientResponseError):
            return self._busy_reason(error)
        is_of_client = type(error).__module__ != "builtins" or isinstance(error, OSError | EOFError | ValueError)
        if isinstance(error, (UserError, ImportError, InvalidURL, *FINAL)) or not is_of_client:
            return None

        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        names = {kind.__name__ for kind in type(error).__mro__}
        status = _status(error)
        if isinstance(error, PermissionError) or status in (401, 403) or CREDENTIALS.search(type(error).__name__):
            protocol = self.url.partition("://")[0]
            remedy = REMEDIES.get(protocol, "give the credentials that this storage needs")
            raise RemoteError(f"{self.url}: access denied ({reason}): {remedy}") from error
        if "OfflineModeIsEnabled" in names or (status and status not in BUSY):
            raise RemoteError(f"{self.url}: {reason}") from error
        is_connection_error = isinstance(error, OSError | ClientError | EOFError) or bool(names & CONNECTION)
        if not is_connection_error and not status:
            raise RemoteError(f"{self.url}: {reason}") from error
        if isinstance(error, TimeoutError):
            return f"no answer for {self.retries.timeout:g} s"
        return reason

    def _busy_reason(self, error: Any) -> str:
        """Return the reason given by a busy web server. Raises MissingPath or RemoteError for any other answer."""
        reason = f"the server answers {error.status} {error.message}"
        if error.status == 404:
            raise MissingPath(f"{self.url}: {reason}") from error
        if error.status not in BUSY:
            raise RemoteError(f"{self.url}: {reason}") from error
        return reason


def retry_after(error: Exception) -> float:
    """Return the waiting time that a server asks for by the header Retry-After of an error's response.

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
        if isinstance(error.__cause__, Exception):
            return retry_after(error.__cause__)
        return 0.0
    lower_case = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    value = lower_case.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    try:
        seconds = parsedate_to_datetime(value).timestamp() - time.time()
    except (TypeError, ValueError):
        return 0.0
    return max(0.0, seconds)


def _status(error: Exception) -> int | None:
    """Return the response status behind an error of botocore, httpx or gcsfs."""
    response: Any = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    if isinstance(response, dict):
        return cast(int | None, response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    return getattr(response, "status_code", getattr(error, "code", None))
