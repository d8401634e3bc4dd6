"""Passes the metrics of steps on to the sinks that logging.sinks names."""

from collections.abc import Callable
from functools import partial

from megatape.registry import SINKS
from megatape.reliability.lease import LeaseLost
from megatape.training.callbacks.callback import Callback, RunContext, Sink
from megatape.training.step import StepMetrics

RECORD = "jsonl"  # the sink from which a run resumes: only errors of its file cost no more than a warning


class Metrics(Callback):
    """The sinks of the main rank; there are none elsewhere."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        names = dict.fromkeys(run.config.logging.sinks) if run.topology.is_main else {}
        self._sinks: dict[str, Sink] = {name: SINKS[name].load()(run) for name in names}
        self._first_step = 1
        self._warned: set[str] = set()

    def on_start(self, step: int) -> None:
        self._first_step = step + 1
        self._each(lambda sink: sink.start(step))

    def on_step(self, metrics: StepMetrics) -> None:
        self.run.speed.add_step(metrics.step, metrics.seconds)
        is_due = metrics.step % self.run.config.logging.interval == 0 or metrics.step == self._first_step
        self._each(lambda sink: sink.write(metrics) if sink.every_step or is_due or metrics.validation else None)

    def flush(self) -> bool:
        return self._each(lambda sink: sink.flush())

    def close(self) -> None:
        self._each(lambda sink: sink.close())

    def _each(self, call: Callable[[Sink], object]) -> bool:
        """Call each sink. Returns whether the record was written."""
        recorded = True
        for name, sink in self._sinks.items():
            try:
                written = self.run.log.attempt(partial(call, sink))
                recorded = recorded and (written or name != RECORD)
            except Exception as error:
                if name == RECORD or isinstance(error, LeaseLost):
                    raise
                text = f"sink {name}: {type(error).__name__}: {error}"
                if text not in self._warned:
                    self._warned.add(text)
                    self.run.log.warning(f"{text}; training continues")
        return recorded
