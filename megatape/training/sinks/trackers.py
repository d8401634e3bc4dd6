"""A run's record in a tracker, a package that keeps the metrics of many runs: Weights & Biases and Trackio."""

import os
import secrets
from typing import Any

from megatape.training.callbacks.callback import RunContext, Sink
from megatape.training.step import StepMetrics
from megatape.utils.files import json_content, read_json, write_atomically
from megatape.utils.masking import mask_values


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
        self._id = secrets.token_hex(8)
        self._last_step = 0
        self._record: Any = None

    def start(self, step: int) -> None:
        if self._record is None:
            if self._path.exists():
                kept = read_json(self._path)
                self._id = str(kept["id"])
                self._last_step = int(kept["step"])
            self._record = self.open(self._id)

    def write(self, metrics: StepMetrics) -> None:
        if self._record is None or metrics.step <= self._last_step:
            return
        self._record.log(metrics.values(), step=metrics.step)
        self._last_step = metrics.step
        write_atomically(self._path, json_content({"id": self._id, "step": self._last_step}, str(self._path)))

    def close(self) -> None:
        record = self._record
        self._record = None
        if record is not None:
            record.finish()

    def open(self, record_id: str) -> Any:
        """Begin or continue the record with this id; it has `log` and `finish`."""
        raise NotImplementedError


class WeightsAndBiases(Tracker):
    """A run of W&B (https://docs.wandb.ai), by the name of the run's folder.

    Project and mode come from its own variables, such as WANDB_MODE=offline.
    """

    name = "wandb"

    def open(self, record_id: str) -> Any:
        import wandb  # here, because only a run that asks for it needs the package

        directory = self.run.folder.directory.absolute()
        return wandb.init(
            name=directory.name,
            id=record_id,
            resume="allow",
            dir=str(directory),
            config=mask_values(self.run.config.model_dump(mode="json")),
            settings=wandb.Settings(console="off"),  # the run's own lines stay as they are
        )


class Trackio(Tracker):
    """A run of Trackio (https://huggingface.co/docs/trackio), a local dashboard, by the name of the run's folder and an id.

    Its folder comes from TRACKIO_DIR, and its project from TRACKIO_PROJECT.
    """

    name = "trackio"

    def open(self, record_id: str) -> Any:
        import trackio  # here, because only a run that asks for it needs the package

        return trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "megatape"),
            name=f"{self.run.folder.directory.absolute().name}-{record_id}",
            resume="allow",
            config=mask_values(self.run.config.model_dump(mode="json")),
        )
