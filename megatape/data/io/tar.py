"""Reads the members of an untrusted tar file, in order, with Python's tarfile. Nothing is extracted.

tarfile alone, like webdataset's reader, would read extended headers of any size into memory, follow negative sizes, and take an
archive ending between two members, or in a corrupted header, for complete.
"""

from collections.abc import Callable, Iterator
from tarfile import BLOCKSIZE, ReadError, TarFile, TarInfo
from typing import Any, BinaryIO, NamedTuple, cast

from megatape.errors import UserError

# Maximum size of the headers of a member, including extended ones. Paths are much shorter.
MAX_HEADER_BYTES = 2**16
# Maximum size of a member, so that its end is a valid position in a file.
MAX_MEMBER_BYTES = 2**60
CHUNK_BYTES = 2**20
# Type of a header with the name of the archive.
LABEL = b"V"


class Member(NamedTuple):
    """A member that is not a folder.

    Attributes:
        name: Name of the member.
        content: Content, or None if it is not read, too long, or not a trusted file.
        reason: Reason why the member is not a trusted file, or None if it is.
    """

    name: str
    content: bytes | None
    reason: str | None


def read_members(file: BinaryIO, is_read: Callable[[str], bool], max_bytes: int) -> Iterator[Member]:
    """Yield the members of an open tar file.

    Args:
        file: Tar file.
        is_read: Whether to read the content of a member with this name.
        max_bytes: Maximum size of content to read.

    Raises:
        tarfile.ReadError: The file is truncated, corrupted or not a tar file.
    """
    headers = _Headers(file)
    try:
        archive = TarFile(fileobj=cast(Any, headers), encoding="utf-8", errors="surrogateescape")
        while True:
            member = archive.next()
            if member is None:
                break
            # The archive would otherwise keep all members in memory.
            archive.members.clear()  # type: ignore[attr-defined]
            headers.left = MAX_HEADER_BYTES
            if member.type == LABEL:
                continue
            if not 0 <= member.size < MAX_MEMBER_BYTES:
                raise ReadError(f"a member of {member.size:,} bytes")
            # Python before 3.11.10 reads a malformed extended header as a name with a null byte. Later ones raise ReadError.
            if "\0" in member.name:
                raise ReadError("an extended header is malformed")
            reason = _untrusted_reason(member)
            content = None
            if member.isfile() and reason is None and member.size <= max_bytes and is_read(member.name):
                content = file.read(member.size)
                if len(content) < member.size:
                    raise ReadError("truncated")
            if not member.isdir():
                yield Member(member.name, content, reason)
    except UserError:
        # UserError is a ValueError. It is about the file's server, not its content.
        raise
    except ValueError as error:
        raise ReadError(f"a header is corrupted ({error})") from error
    file.seek(archive.offset)
    _check_end(file)


def _check_end(file: BinaryIO) -> None:
    """Raise tarfile.ReadError unless an archive ends here."""
    if file.read(BLOCKSIZE) != bytes(BLOCKSIZE):
        raise ReadError("truncated, or a header is corrupted")
    while True:
        chunk = file.read(CHUNK_BYTES)
        if not chunk:
            return
        if chunk.strip(b"\0"):
            raise ReadError("there is more after its end, of another tar file perhaps")


class _Headers:
    """An open tar file for tarfile, which only reads headers from it.

    Attributes:
        left: Bytes that may still be read before the next member.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.left = MAX_HEADER_BYTES
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise ReadError(f"extended headers of more than {MAX_HEADER_BYTES:,} bytes")
        self.left -= size
        return self._file.read(size)


def _untrusted_reason(member: TarInfo) -> str | None:
    """Return the reason why a member is not a trusted file, or None if it is."""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        return "its name leads out of the archive"
    if member.islnk() or member.issym():
        return "it is a link, no file"
    if member.issparse() or not (member.isfile() or member.isdir()):
        return "it is a device, a file with holes or the like"
    return None
