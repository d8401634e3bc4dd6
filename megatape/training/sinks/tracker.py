"""A run's record in a tracker, a package that keeps the metrics of many runs."""

import json
import secrets
from typing import Any

from megatape.files import read_json, write_atomically
from megatape.training.callbacks.callback import RunContext, Sink
from megatape.training.step import StepMetrics


class Tracker(Sink):
    """Base of sinks that write to a tracker. A run has one record there, which a resumed run continues.

    The run's folder keeps the record's id and the last step that it was given. Steps up to that one, which a resumed run or a
    rollback makes again, are not given again.

    Attributes:
        name: of the sink's registry entry.
    """

    name: str

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._path = run.folder.tracker(self.name)
        self._id, self._last_step = secrets.token_hex(8), 0
        self._record: Any = None

    def start(self, step: int) -> None:
        if self._record is None:
            if self._path.exists():
                kept = read_json(self._path)
                self._id, self._last_step = str(kept["id"]), int(kept["step"])
            self._record = self.open(self._id)

    def write(self, metrics: StepMetrics) -> None:
        if self._record is None or metrics.step <= self._last_step:
            return
        self._record.log(metrics.values(), step=metrics.step)
        self._last_step = metrics.step
        write_atomically(self._path, json.dumps({"id": self._id, "step": self._last_step}).encode())

    def close(self) -> None:
        record, self._record = self._record, None
        if record is not None:
            record.finish()

    def open(self, record_id: str) -> Any:
        """Begin or continue the record with this id; it has `log` and `finish`."""
        raise NotImplementedError
