"""Passes step metrics to the sinks in logging.sinks."""

from collections.abc import Callable
from functools import partial

from megatape.errors import LeaseLost, UserError
from megatape.registry import SINKS
from megatape.training.callbacks.callback import Callback, RunContext
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.sinks.sink import Sink

# Sink needed for resuming. Its errors end the run, except for failed writes, which cause a warning.
RECORD = "jsonl"


class Metrics(Callback):
    """Callback with the main rank's sinks. Other ranks have none."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._sinks: dict[str, Sink] = {}
        if run.topology.is_main:
            for name in dict.fromkeys(run.config.logging.sinks):
                self._sinks[name] = SINKS[name].load()(run)
        self._first_step = 1
        self._warned: set[str] = set()

    def on_start(self, step: int) -> None:
        self._first_step = step + 1
        self._each(lambda sink: sink.start(step))

    def on_step(self, metrics: StepMetrics) -> None:
        # The step before the first one was made by an earlier process, and is reported again with its evaluation.
        if metrics.step >= self._first_step:
            self.run.speed.add_step(metrics.step, metrics.seconds)
        is_due = (
            metrics.step % self.run.config.logging.interval == 0
            or metrics.step == self._first_step
            or metrics.validation is not None
        )

        def write(sink: Sink) -> None:
            if is_due or sink.every_step:
                sink.write(metrics)

        self._each(write)

    def flush(self) -> bool:
        return self._each(lambda sink: sink.flush())

    def close(self) -> None:
        self._each(lambda sink: sink.close())

    def _each(self, call: Callable[[Sink], object]) -> bool:
        """Call each sink. Returns whether RECORD was written."""
        is_recorded = True
        for name, sink in self._sinks.items():
            try:
                is_written = self.run.log.attempt(partial(call, sink))
                if name == RECORD and not is_written:
                    is_recorded = False
            except Exception as error:
                if name == RECORD or isinstance(error, LeaseLost):
                    raise
                text = f"sink {name}: {type(error).__name__}: {error}"
                if isinstance(error, UserError):
                    text = f"sink {name}: {error}"
                if text not in self._warned:
                    self._warned.add(text)
                    self.run.log.warning(f"{text}; training continues")
        return is_recorded
