"""Retries after errors that a shared file system reports while a server or the network is away."""

import errno
import logging
import time
from collections.abc import Callable
from typing import TypeVar

LOG = logging.getLogger(__name__)
Result = TypeVar("Result")
# Errors that a shared file system reports while a server or the network is away.
TRANSIENT = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.ESHUTDOWN}
# Seconds between attempts.
WAITS = (1.0, 2.0, 4.0, 8.0)


def is_transient(error: OSError) -> bool:
    """Whether an error may be temporary."""
    return error.errno in TRANSIENT


def retry_transient_errors(
    work: Callable[[], Result],
    is_retried: Callable[[OSError], bool] = is_transient,
    warn: Callable[[str], object] = LOG.warning,
) -> Result:
    """Call a function, retrying after a wait while it raises transient errors.

    Args:
        work: Function to call.
        is_retried: Whether an OSError is worth another attempt.
        warn: Prints a line before each wait.

    Returns:
        Result of the function.

    Raises:
        OSError: The error is not transient, or remains after all WAITS.
    """
    for wait in WAITS:
        try:
            return work()
        except OSError as error:
            if not is_retried(error):
                raise
            warn(f"{error}; trying again in {wait:.0f} s")
            time.sleep(wait)
    return work()
