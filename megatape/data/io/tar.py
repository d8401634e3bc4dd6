"""The members of an untrusted tar file, in order, by Python's tarfile. Nothing is extracted.

tarfile alone would read extended headers of any size into memory and follow negative sizes; it takes an archive that
ends between two members, or in a corrupted header, for complete. webdataset's reader stands on it.
"""

from collections.abc import Callable, Iterator
from tarfile import BLOCKSIZE, ReadError, TarFile, TarInfo
from typing import Any, BinaryIO, NamedTuple, cast

from megatape.errors import UserError

MAX_HEADER_BYTES = 2**16  # of the headers of a member, extended ones included: a path is much shorter
MAX_MEMBER_BYTES = 2**60  # whose ends are positions that a file can have
CHUNK_BYTES = 2**20
LABEL = b"V"  # the kind of a header with the name of the archive


class Member(NamedTuple):
    """A member that is no folder. content: None if it was not wanted, is longer than was asked for, or has a fault.

    fault: why it is no file that could be trusted; empty if it is one.
    """

    name: str
    content: bytes | None
    fault: str


def read_members(file: BinaryIO, wanted: Callable[[str], bool], max_bytes: int) -> Iterator[Member]:
    """The members of an open tar file. Reads the content of files whose name is wanted, and that have at most `max_bytes`.

    Raises tarfile.ReadError for a file that is truncated, corrupted or no tar file.
    """
    headers = _Headers(file)
    try:
        archive = TarFile(fileobj=cast(Any, headers), encoding="utf-8", errors="surrogateescape")
        while member := archive.next():
            archive.members.clear()  # type: ignore[attr-defined]  # of all members, which it would hold
            headers.left = MAX_HEADER_BYTES
            if member.type == LABEL:
                continue
            if not 0 <= member.size < MAX_MEMBER_BYTES:
                raise ReadError(f"a member of {member.size:,} bytes")
            fault = _fault(member)
            content = None
            if member.isfile() and not fault and member.size <= max_bytes and wanted(member.name):
                content = file.read(member.size)
                if len(content) < member.size:
                    raise ReadError("truncated")
            if not member.isdir():
                yield Member(member.name, content, fault)
    except UserError:  # of a server
        raise
    except ValueError as error:
        raise ReadError(f"a header is corrupted ({error})") from error
    file.seek(archive.offset)
    if file.read(BLOCKSIZE) != bytes(BLOCKSIZE):
        raise ReadError("truncated, or a header is corrupted")
    while rest := file.read(CHUNK_BYTES):
        if rest.strip(b"\0"):
            raise ReadError("there is more after its end, of another tar file perhaps")


class _Headers:
    """An open tar file as tarfile reads it: headers alone, and at most `left` bytes before the next member."""

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


def _fault(member: TarInfo) -> str:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        return "its name leads out of the archive"
    if "\0" in member.name:
        return "its extended header is malformed"
    if member.islnk() or member.issym():
        return "it is a link, no file"
    if member.issparse() or not (member.isfile() or member.isdir()):
        return "it is a device, a file with holes or the like"
    return ""
