"""The saves of a training loop: in the foreground or in the background, what is told of them, and how often they may fail."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from megatape.checkpoint.background import SHARED
from megatape.files import patiently
from megatape.runtime.exchange import on_main
from megatape.training.metrics import Metrics
from megatape.training.run import DataUnreadable, Run

FAILED_SAVES = 3  # in a row
WHOLE, COPY, REST = range(3)  # what training waits for, which takes as long as the like before


class NotSaved(OSError):
    """The last steps of a run are in no checkpoint, because none could be written. Raised on all ranks."""


class Saves:
    """Context manager around training: however it ends, a save that is in flight is finished, unless ranks are gone. When data
    cannot be read, the steps since the last checkpoint are saved.

    A checkpoint that cannot be written costs a warning. After FAILED_SAVES in a row, and at the end, it is tried again for
    some seconds, as long as schedulers wait after SIGTERM; then it costs the run (NotSaved). Collective, like its methods."""

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
        if isinstance(error, DataUnreadable):
            self._save_without_data(error)

    def write(self, last: bool) -> bool:
        """Save the present step. The last one is waited for; others are written in the background, if so configured.

        Returns whether it was tried: while heartbeats of the run's lease fail, a save that is not the last one is postponed."""
        self.settle()
        if self.run.saved == self.run.step:  # by the last attempts after a save that was in flight
            return True
        if last:
            self._write_last()
            return True
        if on_main(lambda: self.run.lease.is_late, self.run.topology):
            if self.run.step % self.run.config.checkpoint.interval == 0:
                self.metrics.warn(f"{self.run.folder.directory} does not answer: the save after step {self.run.step} waits")
            return False
        if self.run.background is None:
            self._enter(self.run.step, WHOLE)
            self._conclude(self.run.save)
            return True
        self._enter(self.run.step, COPY)
        started = time.perf_counter()
        self.run.begin_save()
        self._begun, self._waited = self.run.step, time.perf_counter() - started
        return True

    def settle(self) -> None:
        """Wait for the save in flight, if there is one."""
        if self.run.saving:
            if not self.run.save_ended:
                self._enter(self._begun, REST)
            self._conclude(self.run.finish_save)

    def _enter(self, step: int, part: int) -> None:
        self.run.pace.enter("save", f"the save after step {step}", part)

    def _conclude(self, save: Callable[[], Path]) -> None:
        try:
            self._tell(save)
        except OSError as error:
            self._failures += 1
            self.metrics.record("save failed", str(error))
            last = self._failures == FAILED_SAVES
            then = "the last attempts are now" if last else f"the next is after {self.run.config.checkpoint.interval} steps"
            self.metrics.warn(f"{error} (failure {self._failures} in a row, {FAILED_SAVES} end the run); {then}")
            if last:
                self._write_last()

    def _write_last(self) -> None:
        """Save the present step, which may be the end of the run. Raises NotSaved."""

        def attempt() -> Path:
            self.metrics.flush()  # no checkpoint without the metrics of its steps
            return self.run.save()

        self._enter(self.run.step, WHOLE)
        try:
            self._tell(lambda: patiently(attempt, lambda _: True, self.metrics.warn))
        except OSError as error:
            steps = f"steps {self.run.saved + 1} to {self.run.step} are not saved"
            raise NotSaved(f"{error}; {steps}; once a checkpoint can be written, --resume auto makes them again") from error

    def _tell(self, save: Callable[[], Path]) -> None:
        started = time.perf_counter()
        try:
            checkpoint = save()
            self._failures = 0
            waited = f"training waited {self._waited + time.perf_counter() - started:.3f} s"
            self.metrics.say(f"checkpoint {checkpoint}; {waited}")
            self.metrics.record("checkpoint", f"{checkpoint.name}, {waited}")
        finally:
            self._waited = 0.0

    def _save_without_data(self, error: DataUnreadable) -> NoReturn:
        saved = "nothing to save"
        if self.run.step > self.run.saved:
            try:
                self._write_last()
            except NotSaved as failure:
                raise NotSaved(f"{error}; {failure}") from None
            saved = f"checkpoint {self.run.folder.checkpoint(self.run.saved)}"
        raise DataUnreadable(f"{error}; {saved}; once the data can be read, --resume auto continues") from None
