"""Reading files by a library that may end its process."""

import multiprocessing
import signal
import traceback
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from multiprocessing.connection import Connection
from typing import Any, cast

from megatape.data.io.records import RecordCounts
from megatape.data.sources.source import Document, Reader, Source
from megatape.data.sources.units import Unit
from megatape.errors import UserError

PART_CHARACTERS = 2**20  # sent at a time
Read = tuple[Document | None, RecordCounts | None]  # a document, and the counts since the one before, if anything was counted
NOTHING = RecordCounts()


class IsolatedReader(Reader):
    """A kind of source whose library ends the process where a file has certain faults.

    The library runs in a child process, which reads many files, so that the error names the file. A
    process pool of the standard library has no generators and hides the signal that ended a child.
    """

    @abstractmethod
    def read_here(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        """The documents of a unit, in this process. See Reader.read."""

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        child = _idle.pop() if _idle else _Child()
        try:
            for document, counted in child.documents(self, source, unit):
                if counted:
                    counts.add(counted)
                if document is not None:
                    yield document
        except BaseException:  # also where the documents that are left are not wanted
            child.end()
            raise
        _idle.append(child)


class _Child:
    """A process that reads one unit after another for this one, with which it ends."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would take along locks of this process's threads
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def documents(self, reader: IsolatedReader, source: Source, unit: Unit) -> Iterator[Read]:
        """The documents of a unit. Raises what reading them raised, or UserError if that has ended the child."""
        answer = self._answer(unit, (reader, source, unit))
        while answer:
            yield from answer
            answer = self._answer(unit)

    def _answer(self, unit: Unit, request: Any = None) -> list[Read]:
        try:
            if request:
                self._connection.send(request)
            answer: Any = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise UserError(f"{unit}: cannot be read: the process that did was {self._exit_reason()}") from None
        if isinstance(answer, Exception):
            raise answer
        return cast(list[Read], answer)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._connection.close()
        self._process.kill()
        self._process.join()

    def _exit_reason(self) -> str:
        code = self._process.exitcode or 0
        if code >= 0:
            return f"ended with status {code}: the lines above say why"
        return (
            f"ended by {signal.Signals(-code).name}: a file is corrupted, so download or copy it again, or the memory is too "
            "small, so give fewer --workers"
        )


_idle: list[_Child] = []  # those of this process that wait for work: each takes a second to start


def _serve(connection: Connection) -> None:
    """The child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which ends it
    with suppress(EOFError, ConnectionError):  # of a parent that has ended
        while True:
            for answer in _answers(*connection.recv()):
                connection.send(answer)


def _answers(reader: IsolatedReader, source: Source, unit: Unit) -> Iterator[list[Read] | Exception]:
    """What is sent of a unit: its documents in parts, and either no more, or why there are no more."""
    counts, part, size = RecordCounts(), list[Read](), 0
    try:
        for document in reader.read_here(source, unit, counts):
            part.append((document, _take(counts)))
            size += len(document.text)
            if size > PART_CHARACTERS:
                yield part
                part, size = [], 0
        yield [*part, (None, counts)]
        yield []
    except Exception as error:  # noqa: BLE001  # the parent raises it
        error.add_note(traceback.format_exc())
        yield [*part, (None, counts)]
        yield error


def _take(counts: RecordCounts) -> RecordCounts | None:
    """Move the counts out of `counts`, which restart at zero; None if nothing was counted."""
    if counts == NOTHING:
        return None
    taken = deepcopy(counts)
    vars(counts).update(vars(RecordCounts()))
    return taken
