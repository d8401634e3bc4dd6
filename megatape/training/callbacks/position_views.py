"""Writes a position view at each evaluation, for encodings whose blocks change position tensors."""

from megatape.training.callbacks.callback import Callback, RunContext
from megatape.training.position_views.view import PositionView
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.validation.result import Validation


class PositionViews(Callback):
    """Writes positions/step-00000100.safetensors and so on. Views that cannot be written wait in memory."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._start_step = 0
        # Whether an earlier process's files about steps after the start have been removed.
        self._is_current = False
        # Step -> view to write.
        self._waiting: dict[int, PositionView] = {}

    def on_start(self, step: int) -> None:
        self._start_step = step
        self._is_current = False

    def on_evaluate(self, step: int, validation: Validation) -> None:
        # Only the main rank has a view.
        if validation.positions:
            self._waiting[step] = validation.positions

    def on_step(self, metrics: StepMetrics) -> None:
        self.flush()

    def flush(self) -> bool:
        if self.run.topology.is_main and (self._waiting or not self._is_current):
            self.run.log.attempt(self._write, "views of positions could not be written")
        return True

    def close(self) -> None:
        if self._waiting:
            self.flush()

    def _write(self) -> None:
        """Remove outdated files, then write the waiting views."""
        if not self._is_current:
            for step, path in self.run.folder.list_position_views().items():
                if step > self._start_step:
                    path.unlink()
            self._is_current = True
        while self._waiting:
            step = min(self._waiting)
            self._waiting[step].save(self.run.folder, step)
            del self._waiting[step]
