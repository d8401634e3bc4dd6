"""metrics.jsonl: the record of a run, from which it resumes and by which it is audited."""

import errno
import io
import os
from contextlib import suppress

from megatape.run_folder import read_metrics
from megatape.training.callbacks.callback import RunContext, Sink
from megatape.training.step import StepMetrics
from megatape.utils.files import json_line, write_atomically


class JsonLines(Sink):
    """One object per step, StepMetrics.record.

    Lines that cannot be written, as on a full disk, are written with a later one: a step that is
    missing would look like samples that the run has not seen. The first step that is written
    replaces its own line and those of later steps.
    """

    every_step = True

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._path = run.folder.metrics
        self._file: io.FileIO | None = None
        self._first_step: int | None = None  # whose line and later ones are replaced; None once they are
        self._is_current = False
        self._rest = b""  # what is not written yet, from where the disk was full

    def start(self, step: int) -> None:
        try:
            self.close()
        finally:
            self._first_step = None
            self._is_current = False
            self._rest = b""

    def write(self, metrics: StepMetrics) -> None:
        self._first_step = self._first_step or metrics.step
        self._rest += json_line(metrics.record(), self._path)
        self.flush()

    def flush(self) -> None:
        if not self._rest:
            return
        if self._file is None:
            self._file = self._open()
        try:
            written = self._file.write(self._rest)
        except OSError:  # after some errors of a file server this open file never works again
            self._close_file()
            raise
        self._rest = self._rest[written:]
        if self._rest:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._close_file()

    def _close_file(self) -> None:
        file = self._file
        self._file = None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _open(self) -> io.FileIO:
        """The file.

        The first time, replace lines of steps that are written again, at once so that a kill loses none, and remove what is no
        metrics.
        """
        if not self._is_current:
            assert self._first_step is not None
            kept = [line for step, line in read_metrics(self._path).items() if step < self._first_step]
            write_atomically(self._path, "".join(f"{line}\n" for line in kept).encode() + self._rest)
            self._rest = b""
            self._is_current = True
        return io.FileIO(self._path, "a")  # unbuffered: it is known how much of a line a full disk has taken
