"""Untrusted files, outputs that never replace existing ones, and retries of transient errors.

Files with a JSON object a line grow while other processes read them, and a killed one may leave them torn.

No dependency retries or renames atomically; huggingface_hub and fsspec do so for their own
downloads alone.
"""

import errno
import fcntl
import io
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import IO, Annotated, Any, TypeVar

from pydantic import AfterValidator, TypeAdapter, ValidationError

from megatape.errors import ExistingPath, PathError, UserError

LOG = logging.getLogger(__name__)
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)

Result = TypeVar("Result")

MAX_JSON_BYTES = 64 * 2**20  # larger than any of ours but the index and the plan of a data directory
MAX_DEPTH = 64  # of nested JSON: ours has less than ten levels, and Python's parser gives up near a thousand
# Lines of this length or longer are not read. Ours have less than a tenth of it.
MAX_LINE_BYTES = 2**20
PARTIAL = ".partial"  # end of the name of the folder in which a data directory is prepared

# Errors of a shared file system while a server or the network is away.
TRANSIENT = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.ESHUTDOWN}
FULL = {errno.ENOSPC, errno.EDQUOT}
DEFAULT_MODE = 0o666  # Permissions of a new file, before the umask is applied.
NO_OUTPUT = "a link, a pipe or a device, through which nothing is written: remove it, or replace it by the file"
WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds between attempts


@contextmanager
def locked(path: Path, wait: bool = True, remove: bool = False) -> Iterator[IO[bytes]]:
    """Hold a lock for this process and the children that inherit the file.

    No filelock, which huggingface_hub brings: its release ends the lock of such children, too.

    Args:
        path: The lock's file, which is created with its folder if needed.
        wait: Wait while another process holds the lock.
        remove: Remove the file at the end. All users of a lock must pass the same value.

    Raises:
        BlockingIOError: Another process holds the lock, unless `wait`.
        PathError: `path` is a link, a pipe or a device.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    operation = fcntl.LOCK_EX
    if not wait:
        operation |= fcntl.LOCK_NB
    while True:
        with open_in_place(path) as file:
            fcntl.flock(file, operation)
            if remove and not _has_name(file, path):
                continue  # the previous holder has removed the file, and another process may have created a new one
            try:
                yield file
            finally:
                if remove:
                    path.unlink(missing_ok=True)
            return


def _has_name(file: IO[bytes], path: Path) -> bool:
    """Whether `path` still is the name of an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def read_json(path: Path, unique_keys: bool = False, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The value of a JSON file of at most `max_bytes`. Raises OSError, or what `parse_json` does."""
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UserError(f"larger than {max_bytes:,} bytes")
    return parse_json(content, unique_keys)


def parse_json(text: str | bytes, unique_keys: bool = False) -> Any:
    """The value of a JSON text.

    Raises JSONDecodeError, a ValueError, if the text is not JSON, and UserError if it is nested more than MAX_DEPTH levels deep
    or, with `unique_keys`, if an object has a key twice: else the last one counts.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique if unique_keys else None)
    except RecursionError:
        raise UserError(f"nested more than {MAX_DEPTH} levels deep") from None
    check_depth(value)
    return value


def check_depth(value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Check the nesting depth of a JSON value.

    Args:
        value: JSON value.
        max_depth: Maximum number of levels.

    Raises:
        UserError: The value is nested deeper.
    """
    level = [value]
    for _ in range(max_depth + 1):
        nested = [whole for whole in level if isinstance(whole, dict | list | tuple)]
        level = [part for whole in nested for part in (whole.values() if isinstance(whole, dict) else whole)]
        if not nested:
            return
    raise UserError(f"nested more than {max_depth} levels deep")


def json_content(
    value: Any,
    name: str,
    indent: int | None = None,
    max_bytes: int = MAX_JSON_BYTES,
    default: Callable[[Any], Any] | None = None,
) -> bytes:
    """Encode a JSON file within the limits of `read_json`.

    Args:
        value: Value to encode.
        name: Name of the file in error messages.
        indent: Spaces per level, None for a single line.
        max_bytes: Maximum size that the reader accepts.
        default: Converts values of types that JSON does not have.

    Returns:
        Content of the file.

    Raises:
        UserError: The value is too deeply nested or too large to be read again.
        TypeError: The value contains a type that is neither JSON's nor converted.
    """
    try:
        check_depth(value)
    except UserError as error:
        raise UserError(f"{name} would be {error}, and could not be read again") from None
    content = json.dumps(value, indent=indent, default=default).encode()
    if len(content) > max_bytes:
        raise UserError(f"{name} would have {len(content):,} bytes, and more than {max_bytes:,} could not be read again")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise UserError(f"duplicate key {next(name for name in names if names.count(name) > 1)} in one object")
    return found


def as_type(value: Any, kind: type[Result]) -> Result:
    """A JSON value as a `kind`, whose fields have the types that it declares.

    Args:
        value: Of `read_json` or `parse_json`.
        kind: A dataclass, a model of pydantic, or a type made of them.

    Raises:
        UserError: In one line, naming the first field that is missing or of another type.
    """
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise UserError(first_fault(error)) from None


def first_fault(error: Any) -> str:
    """The first fault of a pydantic.ValidationError: its field, what is wrong, and a short value."""
    fault = error.errors(include_url=False)[0]
    return describe_fault(fault, ".".join(map(str, fault["loc"])))


def describe_fault(fault: Mapping[str, Any], field: str) -> str:
    """One of the faults of a pydantic.ValidationError in one line, such as "steps: must be at least 1, got 0".

    Args:
        fault: An entry of `ValidationError.errors()`.
        field: Name of the field, empty for the whole value.

    Returns:
        The line. Errors of our validators keep their words: "kind is 'x': choose one of a, b"; "data path is missing".
    """
    value = fault["input"]
    message = fault["msg"].replace("Input should be", "must be").partition(" or instance of")[0]
    message = message.replace("a valid dictionary", "an object").replace("a valid tuple", "a list")
    container = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list | tuple) else ""
    shown = repr(value[:80]) if isinstance(value, str) else container or json.dumps(value, default=str)[:80]
    if fault["type"] != "value_error":
        got = "" if fault["type"] == "missing" else f", got {shown}"
        return f"{field}: {message}{got}".removeprefix(": ")
    message = message.removeprefix("Value error, ")
    return f"{field} {message}" if field and container else f"{field} is {shown}: {message}" if field else message


@contextmanager
def open_regular(path: Path) -> Iterator[io.BufferedReader]:
    """A file to read. Raises OSError, or UserError for a pipe or a device, which may never end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # else pipes wait
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UserError(f"{path}: a pipe or a device, not a file: replace it by the original file")
        yield file


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raises OSError, or UserError for a pipe or a device, which may never end."""
    with open_regular(path) as file:
        return file.read()


def create_file(path: Path, mode: int = DEFAULT_MODE) -> IO[bytes]:
    """Create a file for writing.

    File names in an output folder may be untrusted, such as those of a downloaded index. So an existing file is never replaced,
    and a symbolic link is not followed.

    Args:
        path: File to create. It must not exist.
        mode: Permissions, before the umask is applied.

    Returns:
        The open file.

    Raises:
        ExistingPath: A file, a folder or a link has this name.
        OSError: The file cannot be created.
    """
    try:
        return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))
    except FileExistsError:
        raise _existing_output(path) from None


def _existing_output(path: Path) -> ExistingPath:
    return ExistingPath(f"{path} exists already, and outputs replace no file and follow no link: remove it, or rename it")


@contextmanager
def open_in_place(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading and appending, and create it if it is missing. A symbolic link is not followed.

    Args:
        path: The file.

    Raises:
        PathError: `path` is a link, a pipe or a device.
        OSError: The file cannot be opened.
    """
    try:
        descriptor = without_links(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise PathError(f"{path}: {NO_OUTPUT}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PathError(f"{path}: {NO_OUTPUT}")
    with open(descriptor, "ab+") as file:
        yield file


def without_links(name: str | Path, flags: int) -> int:
    """Open a file unless the last part of its path is a symbolic link. An `opener` for `open`.

    Args:
        name: Path of the file.
        flags: Flags of `os.open`.

    Returns:
        File descriptor.

    Raises:
        OSError: The file is a link (ELOOP) or cannot be opened.
    """
    # Without O_NONBLOCK, opening a pipe would wait for its other end.
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, DEFAULT_MODE)


def _check_file_name(name: str) -> str:
    if name in ("", ".", "..") or set(name) & set("/\0"):
        raise UserError("not a plain file name")
    return name


FileName = Annotated[str, AfterValidator(_check_file_name)]  # in a folder: no path that leads elsewhere


def temporary_name(path: Path) -> Path:
    """A new name beside `path`, for what is renamed to `path` when it is complete."""
    return path.with_name(f"{path.name}.{token_hex(8)}.tmp")


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to fill: it is renamed to `output` when the block ends well and removed when it does not.

    Raises FileExistsError if `output` exists when the block begins or ends.
    """
    check_absent(output)
    folder = temporary_name(output)
    folder.mkdir(parents=True)
    try:
        yield folder
        check_absent(output)
        rename(folder, output)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        name_path(error, output)
        raise


def name_path(error: BaseException, path: Path) -> None:
    """Let the error of a full disk, which names no file, name the path that was being written."""
    if isinstance(error, OSError) and error.errno in FULL and error.strerror and error.filename is None:
        error.filename = str(path)


@contextmanager
def named_if_full(path: Path) -> Iterator[None]:
    """Add the path to the error of a full disk in the block."""
    try:
        yield
    except OSError as error:
        name_path(error, path)
        raise


def is_transient(error: OSError) -> bool:
    """Whether the file system reports an error that may be temporary."""
    return error.errno in TRANSIENT


def retry_transient_errors(
    work: Callable[[], Result],
    is_retried: Callable[[OSError], bool] = is_transient,
    warn: Callable[[str], object] = LOG.warning,
) -> Result:
    """Call a function again, after a wait, while it raises transient errors.

    Args:
        work: The function.
        is_retried: Whether an OSError is worth another attempt.
        warn: Prints a line before each wait.

    Returns:
        The function's value.

    Raises:
        OSError: Any other one at once, and the one that remains after all WAITS.
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


def rename(source: Path, target: Path) -> None:
    """Rename a file or a folder, and replace an existing file of the new name.

    The client of a file server may report an error for a successful rename: the answer was lost, and the repeated request finds
    nothing to rename. So the error is ignored if `target` then is the renamed file.

    Args:
        source: File or folder.
        target: New name.

    Raises:
        OSError: The rename failed.
    """
    before = source.stat(follow_symlinks=False)
    try:
        source.rename(target)
    except OSError as error:
        try:
            after = retry_transient_errors(lambda: target.stat(follow_symlinks=False))
        except OSError:
            raise error from None
        if not os.path.samestat(before, after):
            raise


def real_paths(folders: Sequence[Path]) -> list[Path]:
    """Paths of the folders without links. Raises UserError if one is given twice."""
    paths = [Path(os.path.realpath(folder)) for folder in folders]  # Path.resolve raises no OSError for a loop of links
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise UserError(f"{folder} is given twice")
    return paths


def check_absent(output: Path) -> None:
    """Raise FileExistsError if there is anything of this name."""
    if output.exists() or output.is_symlink():
        raise ExistingPath(f"{output} exists: remove it or choose another name")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file, so that a process killed meanwhile leaves either the old or the new content.

    The file keeps its mode and, if this user may change owners, its owner. So a private file stays private.

    Args:
        path: File to write. It is created if needed.
        content: New content.

    Raises:
        OSError: The file cannot be written. Its content is unchanged.
    """
    partial = temporary_name(path)
    before = None
    with suppress(OSError):  # A link to a file has the mode of that file.
        before = path.stat()
    mode = DEFAULT_MODE
    if before is not None and stat.S_ISREG(before.st_mode):
        mode = stat.S_IMODE(before.st_mode)
    try:
        with named_if_full(path), create_file(partial, mode) as file:
            if before is not None and stat.S_ISREG(before.st_mode):
                with suppress(PermissionError):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        rename(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def create_private(path: Path, content: bytes) -> None:
    """Create a file that only this user can read.

    Args:
        path: File to create.
        content: Content of the file.

    Raises:
        ExistingPath: The name is taken, for example by a link that another user has planted.
        OSError: The file cannot be written.
    """
    with create_file(path, 0o600) as file:
        file.write(content)


def file_system_time(folder: Path) -> float:
    """The present time in seconds since the epoch, by the clock of the file system that has `folder`."""
    probe = temporary_name(folder / "clock")
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's content or a folder's entries are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # O_NONBLOCK: opening a pipe must not wait for a writer
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every line shorter than MAX_LINE_BYTES with a JSON object, and the object. A missing file has no lines.

    Args:
        path: File to read.

    Raises:
        OSError: The file cannot be read.
        UserError: The file is a pipe or a device, which may never end.
    """
    with suppress(FileNotFoundError), open_regular(path) as file:
        begins = True  # a line, not the next part of one that is too long
        while part := file.readline(MAX_LINE_BYTES):
            whole = begins and len(part) < MAX_LINE_BYTES
            begins = part.endswith(b"\n")
            if not whole:
                continue
            try:
                text = part.decode("utf-8").rstrip("\r\n")
                entry = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                yield text, entry


def json_line(entry: dict[str, Any], path: Path) -> bytes:
    """Encode an object as a line of a file for `read_lines`.

    Args:
        entry: Object to encode.
        path: Path of the file, for error messages.

    Raises:
        UserError: The line would be too long to be read again.
    """
    line = json.dumps(entry).encode() + b"\n"
    if len(line) >= MAX_LINE_BYTES:
        raise UserError(f"{path}: a line of {len(line):,} bytes could not be read again: the limit is {MAX_LINE_BYTES - 1:,}")
    return line


def append_lines(path: Path, entries: Iterable[dict[str, Any]], durable: bool = True) -> None:
    """Add a line for each object.

    Args:
        path: The file, which is created if needed.
        entries: The objects.
        durable: The lines are on disk when this returns, and other hosts see them on a shared file system.

    Raises:
        OSError: The file cannot be written. Some of the lines may be in it.
        PathError: The file is a link, a pipe or a device.
        UserError: A line is too long for `read_lines`. Nothing was written.
    """
    lines = [json_line(entry, path) for entry in entries]
    with open_in_place(path) as file, named_if_full(path):
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")  # a torn last line must not spoil the next one
        file.writelines(lines)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def link_file(source: str | Path, target: str | Path) -> None:
    """Give a file another name, or copy it where the file system has no links between the two folders.

    If `source` is a symbolic link, `target` becomes a name or a copy of the linked file. Relative links, such as those in the
    hub's cache, would be broken in another folder.

    Args:
        source: File, or link to a file.
        target: New name.

    Raises:
        UserError: `source` is a folder, a pipe or a device, or a link to one.
        ExistingPath: A file, a folder or a link has the name `target`.
        OSError: `source` is missing, or `target` cannot be written.
    """
    target = Path(target)
    original = check_regular(Path(source))
    try:
        os.link(original, target)
    except FileExistsError:
        raise _existing_output(target) from None
    except OSError:
        _copy(original, target)


def check_regular(path: Path) -> Path:
    """Check that a path is a file, or a link to a file.

    Args:
        path: Path to check.

    Returns:
        Path of the file, with links resolved.

    Raises:
        UserError: The path is a folder, a pipe or a device, or a link to one.
        OSError: The path is missing or a broken link.
    """
    original = Path(os.path.realpath(path, strict=True))
    mode = original.lstat().st_mode
    if stat.S_ISREG(mode):
        return original
    found = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
    if path.is_symlink():
        found = f"a link to {found}"
    raise UserError(f"{path}: {found}, not a file: replace it by the original file")


def _copy(source: Path, target: Path) -> None:
    with named_if_full(target), open_regular(source) as content, create_file(target) as copy:
        shutil.copyfileobj(content, copy)
        copy.flush()
        os.fsync(copy.fileno())
