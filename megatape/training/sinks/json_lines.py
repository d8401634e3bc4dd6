"""Writes metrics.jsonl, the record needed for resuming and auditing a run."""

import errno
import io
import os
from contextlib import suppress

from megatape.run_folder import read_metrics
from megatape.training.callbacks.callback import RunContext
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.sinks.sink import Sink
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.json_lines import json_line


class JsonLines(Sink):
    """Sink writing StepMetrics.record as one line per step.

    Lines that cannot be written, for example on a full disk, are written together with a later one: a missing step would look
    like samples not seen by the run. The first written step replaces its own line and those of later steps.
    """

    every_step = True

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._path = run.folder.metrics
        self._file: io.FileIO | None = None
        # First step to write. It replaces its own line and later ones.
        self._first_step: int | None = None
        # Whether outdated lines have been removed from the file.
        self._is_current = False
        # Bytes not written yet.
        self._unwritten = b""

    def start(self, step: int) -> None:
        try:
            self.close()
        finally:
            self._first_step = None
            self._is_current = False
            self._unwritten = b""

    def write(self, metrics: StepMetrics) -> None:
        self._first_step = self._first_step or metrics.step
        self._unwritten += json_line(metrics.record(), self._path)
        self.flush()

    def flush(self) -> None:
        if not self._unwritten:
            return
        if self._file is None:
            self._file = self._open()
        try:
            written = self._file.write(self._unwritten)
        except OSError:
            # After some errors of a file server, this open file never works again.
            self._close_file()
            raise
        self._unwritten = self._unwritten[written:]
        if self._unwritten:
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
        """Open the file for appending.

        The first time, drop lines that are not metrics or belong to steps made again. The file is replaced atomically, so
        that a kill loses no line.
        """
        if not self._is_current:
            assert self._first_step is not None
            earlier_lines = ""
            for step, line in read_metrics(self._path).items():
                if step < self._first_step:
                    earlier_lines += f"{line}\n"
            write_atomically(self._path, earlier_lines.encode() + self._unwritten)
            self._unwritten = b""
            self._is_current = True
        # An unbuffered file tells how much of a line fit on a full disk.
        return io.FileIO(self._path, "a")
