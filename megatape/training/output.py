"""Lines for whoever reads the output, who may be gone."""

import errno
import os
from typing import TextIO


def say(text: str, stream: TextIO) -> None:
    """Print a line at once. One that a full disk refuses is tried again with the next.

    When the terminal or the reader of a pipe has gone, this and all later lines to the stream are lost, and nothing else happens."""
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            return
        lost = os.open(os.devnull, os.O_WRONLY)
        os.dup2(lost, stream.fileno())  # also for what the stream still holds, which Python would fail to write when it exits
        os.close(lost)
