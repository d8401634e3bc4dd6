"""Base class of readers that use pyarrow, which may crash on corrupted files, so that child processes read them."""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import ClassVar

from megatape.data.counts import RecordCounts
from megatape.data.io.isolated import IsolatedProcess, ProcessEnded
from megatape.data.io.retries import RemoteError
from megatape.data.sources.document import Document
from megatape.data.sources.source import Reader, Source
from megatape.data.sources.units import Unit
from megatape.errors import UserError, flag

# Characters that a child process sends at a time.
PART_CHARACTERS = 2**20
# A document, or the counts since the previous item.
Item = Document | RecordCounts
NOTHING = RecordCounts()
# Idle child processes, by kind of source. They are reused, because starting one takes a second.
_idle: defaultdict[str, list[IsolatedProcess]] = defaultdict(list)


class IsolatedReader(Reader):
    """Reads the files of a unit in a child process. If it ends, the error names the unit.

    Attributes:
        file_format: Name of the files' format, for errors.
    """

    file_format: ClassVar[str]

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        for name in unit.inputs:
            # Read one file at a time, so that an error names it.
            yield from self._read_file(source, replace(unit, inputs=(name,)), counts)

    @abstractmethod
    def read_here(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        """Yield the documents of a unit of one file, in this process. See `read`. May raise errors of pyarrow."""

    def _read_file(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        idle = _idle[source.kind]
        if idle:
            child = idle.pop()
        else:
            child = IsolatedProcess(_parts)
        try:
            for part in child.ask(source, unit):
                for item in part:
                    if isinstance(item, Document):
                        yield item
                    else:
                        counts.add(item)
        except ProcessEnded as end:
            raise UserError(
                f"{unit}: cannot be read: the process reading it {end}: a file is corrupted, so download or copy it again, or "
                f"the memory is too small, so give fewer {flag('workers')}"
            ) from None
        except BaseException:
            # This also ends the process when the caller stops reading before the last document.
            child.end()
            raise
        idle.append(child)


def _parts(source: Source, unit: Unit) -> Iterator[list[Item]]:
    """Yield the documents of a unit in parts, interleaved with counts. Counts come even before an error."""
    reader = source.reader
    assert isinstance(reader, IsolatedReader)
    counts = RecordCounts()
    part = list[Item]()
    size = 0
    try:
        for document in _documents(reader, source, unit, counts):
            if counts != NOTHING:
                part.append(deepcopy(counts))
                vars(counts).update(vars(RecordCounts()))
            part.append(document)
            size += len(document.text)
            if size > PART_CHARACTERS:
                yield part
                part = []
                size = 0
    except Exception:
        yield [*part, counts]
        raise
    yield [*part, counts]


def _documents(reader: IsolatedReader, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
    """Yield the documents of a unit of one file. Errors of pyarrow name it."""
    # The import takes a third of a second.
    import pyarrow as pa

    try:
        yield from reader.read_here(source, unit, counts)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, RemoteError) or getattr(error, "errno", None) is not None:
            # The error is about the disk or server, not the content.
            raise
        raise corrupted(unit.inputs[0], reader, str(error)) from error


def corrupted(name: str, reader: IsolatedReader, reason: str) -> UserError:
    """Return the error about a corrupted file."""
    return UserError(f"{name}: corrupted {reader.file_format} file ({reason}): download or copy it again")
