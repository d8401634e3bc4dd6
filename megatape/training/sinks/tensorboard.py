"""Writes metrics for TensorBoard."""

import time
from contextlib import suppress

from torch.utils.tensorboard import SummaryWriter

from megatape.training.callbacks.callback import RunContext
from megatape.training.position_views.view import PositionView
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.sinks.sink import Sink

# Seconds to wait before retrying a failed write.
RETRY_SECONDS = 600.0


class TensorBoard(Sink):
    """Sink for losses, gradient norm, learning rate, speed, memory, and the position view: norms, dot products, gains."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._writer: SummaryWriter | None = None
        self._failed = -RETRY_SECONDS

    def start(self, step: int) -> None:
        self.close()

    def write(self, metrics: StepMetrics) -> None:
        if time.monotonic() - self._failed < RETRY_SECONDS:
            return
        try:
            if self._writer is None:
                self._writer = SummaryWriter(str(self.run.folder.tensorboard), purge_step=metrics.step)
            for name, value in self._values(metrics).items():
                self._writer.add_scalar(name, value, metrics.step)
            if metrics.validation and metrics.validation.positions:
                _add_positions(self._writer, metrics.validation.positions, metrics.step)
        except OSError:
            # After its thread has failed, a writer never writes again. A new one starts a new file.
            self._failed = time.monotonic()
            with suppress(OSError):
                self.close()
            raise

    def close(self) -> None:
        writer = self._writer
        self._writer = None
        if writer:
            writer.close()

    def _values(self, metrics: StepMetrics) -> dict[str, float]:
        tokens, utilization = self.run.speed.of_step(metrics.step, metrics.seconds)
        values = metrics.values() | {"speed/tokens per second": tokens}
        if utilization is not None:
            values["speed/MFU"] = utilization
        return values


def _add_positions(writer: SummaryWriter, view: PositionView, step: int) -> None:
    for layer, norm in enumerate(view.norms, 1):
        writer.add_scalar(f"position tensor/norm in layer {layer}", norm, step)
    for layer, gains in enumerate(view.gains, 1):
        if gains.size:
            writer.add_histogram(f"position tensor/gains of layer {layer}", gains, step)
    writer.add_image("position tensor/dot products by layer", view.picture(), step, dataformats="HWC")
