"""Files of unknown origin, outputs that never replace what somebody else made, and patience with file systems."""

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

Result = TypeVar("Result")

MAX_JSON_BYTES = 64 * 2**20  # larger than any of ours but the index of a data directory
MAX_DEPTH = 64  # of nested JSON: ours has less than ten levels, and Python's parser gives up near a thousand

# What a shared file system reports while a server or the network is away, and the seconds between attempts to go on.
TRANSIENT = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENOTCONN,
    errno.ESHUTDOWN,
}
WAITS = (1.0, 2.0, 4.0, 8.0)


def read_json(
    path: Path, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None, max_bytes: int = MAX_JSON_BYTES
) -> Any:
    """The value of a JSON file of at most `max_bytes`. Raises OSError, or ValueError as `parse_json` does, and for a pipe or a
    device, which may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("no regular file")
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"larger than {max_bytes:,} bytes")
    return parse_json(content, pairs_hook)


def parse_json(text: str | bytes, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of a JSON text. pairs_hook: makes an object of its pairs, as json.loads takes it.

    Raises ValueError if the text is not JSON or nested more than MAX_DEPTH levels deep."""
    try:
        value = json.loads(text, object_pairs_hook=pairs_hook)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        nested = [whole for whole in level if isinstance(whole, dict | list)]
        level = [part for whole in nested for part in (whole.values() if isinstance(whole, dict) else whole)]
        if not nested:
            return value
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def temporary_name(path: Path) -> Path:
    """A new name beside `path`, for what is renamed to `path` when it is complete."""
    return path.with_name(f"{path.name}.{token_hex(8)}.tmp")


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to fill: it is renamed to `output` when the block ends well and removed when it does not.

    Raises FileExistsError if `output` exists when the block begins or ends."""
    check_absent(output)
    folder = temporary_name(output)
    folder.mkdir(parents=True)
    try:
        yield folder
        check_absent(output)
        folder.rename(output)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def patiently(work: Callable[[], Result]) -> Result:
    """What `work` returns, after waiting and trying again while the file system reports an error that may pass.

    Raises the last OSError: what remains after all WAITS is no short disturbance."""
    for wait in WAITS:
        try:
            return work()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            print(f"{error}; trying again in {wait:.0f} s", file=sys.stderr, flush=True)
            time.sleep(wait)
    return work()


def check_absent(output: Path) -> None:
    """Raise FileExistsError if there is anything of this name."""
    if output.exists() or output.is_symlink():
        raise FileExistsError(f"{output} exists: remove it or choose another name")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file, so that a process killed meanwhile leaves either the old or the new content."""
    partial = temporary_name(path)
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's content or a folder's entries are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
