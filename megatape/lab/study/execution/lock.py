"""Locking the folder of a study."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from megatape.errors import UserError, path_errors
from megatape.utils.files.locks import locked

LOG = logging.getLogger(__name__)


@contextmanager
def locked_study(folder: Path, wait: bool = False) -> Iterator[IO[bytes]]:
    """Create the folder if it is missing, and lock it for this process and the children inheriting the lock file.

    Args:
        folder: Study folder.
        wait: Whether to wait, with a warning, while another process holds the lock.

    Raises:
        UserError: Another process holds the lock, and `wait` is false.
    """
    path = folder / "lock"
    in_use = f"{folder} is in use by another study, or by runs it left behind: "
    with ExitStack() as stack:
        with path_errors():
            try:
                file = stack.enter_context(locked(path, wait=False))
            except BlockingIOError:
                if not wait:
                    raise UserError(f"{in_use}wait for them, stop them, or choose another folder") from None
                LOG.warning("%swaiting until they end", in_use)
                file = stack.enter_context(locked(path))
        yield file
