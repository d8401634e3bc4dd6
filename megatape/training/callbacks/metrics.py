"""Passes the metrics of steps on to the sinks that logging.sinks names."""

from functools import partial

from megatape.registry import SINKS
from megatape.training.callbacks.callback import Callback, RunContext, Sink
from megatape.training.step import StepMetrics


class Metrics(Callback):
    """The sinks of the main rank; there are none elsewhere."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        names = run.config.logging.sinks if run.topology.is_main else ()
        self._sinks: list[Sink] = [SINKS[name].load()(run) for name in names]
        self._first_step = 1

    def on_start(self, step: int) -> None:
        self._first_step = step + 1
        for sink in self._sinks:
            self.run.log.attempt(partial(sink.start, step))

    def on_step(self, metrics: StepMetrics) -> None:
        self.run.speed.add_step(metrics.seconds)
        is_due = metrics.step % self.run.config.logging.interval == 0 or metrics.step == self._first_step
        for sink in self._sinks:
            if sink.every_step or is_due or metrics.validation:
                self.run.log.attempt(partial(sink.write, metrics))

    def flush(self) -> None:
        for sink in self._sinks:
            self.run.log.attempt(sink.flush)

    def close(self) -> None:
        for sink in self._sinks:
            self.run.log.attempt(sink.close)
