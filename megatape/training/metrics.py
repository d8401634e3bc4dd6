"""Everything a run reports about itself, from one place."""

import json
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from megatape.config import Config
from megatape.run_folder import RunFolder, read_metrics
from megatape.runtime.exchange import on_main
from megatape.runtime.lease import Lease, LeaseLost
from megatape.runtime.topology import Topology
from megatape.training.events import Event, append_line, event_line
from megatape.training.output import say
from megatape.training.sinks import Console, JsonLines, PositionViews, Sink, TensorBoard
from megatape.training.speed import Speed
from megatape.training.step import NUMBERS, StepMetrics


class Metrics:
    """Passes metrics on to the sinks of the main rank; there are none elsewhere. Context manager.

    A sink that cannot write, because a disk is full for example, costs one warning and never the run. Lines of metrics.jsonl
    and events.jsonl and position views wait in memory until they can be written. Nothing is written while another run may
    have the folder: the methods raise LeaseLost if one has taken the `lease`.
    A sink that does not take every step gets those of logging.interval, those with a validation loss, and the first."""

    def __init__(
        self, config: Config, folder: RunFolder, lease: Lease, topology: Topology, start_step: int, unigram_entropy: float
    ) -> None:
        self._topology, self._is_main, self._lease = topology, topology.is_main, lease
        self._events: deque[bytes] = deque()  # lines that are not written yet
        self._interval = config.logging.interval
        self._speed = Speed(config, topology.world_size)
        self._sinks: list[Sink] = []
        self._warned: set[str] = set()
        self._folder = folder
        self._steps, self._unigram_entropy = config.training.steps, unigram_entropy
        self._open(start_step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(LeaseLost):  # then the folder is another run's
            if error is not None:
                self.record("failed", str(error) or type(error).__name__)
            self._close()

    def go_back(self, step: int) -> None:
        """Continue after an earlier step: what was written since is removed with the next one."""
        self._close()
        self._open(step)

    def write(self, metrics: StepMetrics) -> None:
        """Report one step."""
        self._step = metrics.step
        self._speed.add_step(metrics.seconds)
        picked = metrics.validation or metrics.step % self._interval == 0 or metrics.step == self._first_step
        for sink in self._sinks:
            if picked or sink.every_step:
                self._try(partial(sink.write, metrics))

    def flush(self) -> None:
        """Write what could not be written before."""
        self._try(self._write_events)
        for sink in self._sinks:
            self._try(sink.flush)

    def begin(self, ranks: str, origin: Path | None) -> None:
        """Record that this process begins, and which steps it makes again that were made after the checkpoint `origin`."""
        if not self._is_main:
            return
        recorded: dict[int, str] = {}
        self._try(lambda: recorded.update(read_metrics(self._folder.metrics)))
        made = max(recorded, default=0)
        parts = [ranks, *([f"from {origin}"] if origin else [])]
        parts += [f"steps {self._step + 1} to {made} are made again"] if made > self._step else []
        self.record("resumed" if origin else "started", ", ".join(parts))

    def record(self, event: Event, detail: str = "") -> None:
        """Keep an event of the step that was last written."""
        if self._is_main:
            self._events.append(event_line(event, self._step, detail))
            self._try(self._write_events)

    def warn(self, text: str) -> None:
        """Print one line to the errors of the main rank."""
        if self._is_main:
            say(f"warning: {text}", sys.stderr)

    def unevaluated(self) -> StepMetrics | None:
        """The metrics of the step that the run continues from, if they were recorded without a validation. Collective."""

        def find() -> dict[str, Any]:
            record: dict[str, Any] = {}
            self._try(lambda: record.update(json.loads(read_metrics(self._folder.metrics).get(self._step, "{}"))))
            return record

        record = on_main(find, self._topology)
        return StepMetrics.parse(record) if record.keys() >= set(NUMBERS) and "validation_loss" not in record else None

    def _write_events(self) -> None:
        while self._events:
            append_line(self._folder.events, self._events[0])
            self._events.popleft()

    def _open(self, step: int) -> None:
        self._step, self._first_step = step, step + 1
        if self._is_main:
            self._try(lambda: self._sinks.append(JsonLines(self._folder.metrics)))
            self._try(lambda: self._sinks.append(PositionViews(self._folder)))
            self._try(lambda: self._sinks.append(TensorBoard(self._folder.tensorboard, self._speed)))
            self._try(lambda: self._sinks.append(Console(self._steps, self._unigram_entropy, self._speed)))

    def _close(self) -> None:
        while self._sinks:
            self._try(self._sinks.pop(0).close)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            self._lease.check()
            action()
        except OSError as error:
            # One warning for each kind of failure: the message of a full disk is the same at every step.
            if str(error) not in self._warned:
                self._warned.add(str(error))
                self.warn(f"metrics could not be written: {error}; training continues")

    def say(self, text: str) -> None:
        """Print one line on the main rank."""
        if self._is_main:
            say(text, sys.stdout)
