"""The saves of a training loop: in the foreground or in the background, what is told of them, and how often they may fail."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from megatape.checkpoint.background import SHARED
from megatape.training.metrics import Metrics
from megatape.training.run import Run

FAILED_SAVES = 3  # in a row
WHOLE, COPY, REST = range(3)  # what training waits for, which takes as long as the like before


class NotSaved(OSError):
    """The last checkpoint could not be written."""


class Saves:
    """Context manager around training: however it ends, a save that is in flight is finished, unless ranks are gone.

    A checkpoint that cannot be written costs a warning, and the FAILED_SAVES-th in a row, or the last one, the run (OSError).
    Collective, like its methods."""

    def __init__(self, run: Run, metrics: Metrics) -> None:
        self.run, self.metrics = run, metrics
        self._failures = 0  # in a row
        self._begun = 0  # step of the save in flight
        self._waited = 0.0  # seconds that training waited for it so far

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, SHARED):
            try:
                self.settle()
            except SHARED as failure:
                self.metrics.warn(str(failure))

    def write(self, last: bool) -> None:
        """Save the present step. The last one is waited for; others are written in the background, if so configured."""
        self.settle()
        if last or self.run.background is None:
            self._enter(self.run.step, WHOLE)
            self._conclude(self.run.save, last)
            return
        self._enter(self.run.step, COPY)
        started = time.perf_counter()
        self.run.begin_save()
        self._begun, self._waited = self.run.step, time.perf_counter() - started

    def settle(self) -> None:
        """Wait for the save in flight, if there is one."""
        if self.run.saving:
            if not self.run.save_ended:
                self._enter(self._begun, REST)
            self._conclude(self.run.finish_save, last=False)

    def _enter(self, step: int, part: int) -> None:
        self.run.pace.enter("save", f"the save after step {step}", part)

    def _conclude(self, save: Callable[[], Path], last: bool) -> None:
        started = time.perf_counter()
        try:
            checkpoint = save()
        except OSError as error:
            self._failures += 1
            if last or self._failures == FAILED_SAVES:
                raise
            self.metrics.record("save failed", str(error))
            self.metrics.warn(
                f"{error} (failure {self._failures} in a row, {FAILED_SAVES} end the run); the next attempt is after "
                f"{self.run.config.checkpoint.interval} steps"
            )
        else:
            self._failures = 0
            waited = f"training waited {self._waited + time.perf_counter() - started:.3f} s"
            self.metrics.say(f"checkpoint {checkpoint}; {waited}")
            self.metrics.record("checkpoint", f"{checkpoint.name}, {waited}")
        finally:
            self._waited = 0.0
