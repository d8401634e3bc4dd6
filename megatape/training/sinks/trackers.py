"""Writes metrics to experiment trackers: Weights & Biases and Trackio."""

import os
import secrets
from pathlib import Path
from typing import Any

from megatape.errors import UserError
from megatape.training.callbacks.callback import RunContext
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.sinks.sink import Sink
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.json_files import json_content, read_json
from megatape.utils.text.url_secrets import mask_secrets_in_json


class Tracker(Sink):
    """Base class of sinks writing to a tracker. A run has one record there, which a resumed run continues.

    The run directory stores the record's id and its last step. Earlier steps made again, when resuming or after a rollback, are
    not written again.

    Attributes:
        name: Registry name of the sink.
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
                self._id, self._last_step = _read_position(self._path)
            self._record = self.open(self._id)

    def write(self, metrics: StepMetrics) -> None:
        if self._record is None:
            raise UserError("no record is open, because the sink did not start: no step is written until the run is restarted")
        if metrics.step <= self._last_step:
            return
        self._record.log(metrics.values(), step=metrics.step)
        self._last_step = metrics.step
        position = {"id": self._id, "step": self._last_step}
        write_atomically(self._path, json_content(position, str(self._path)))

    def close(self) -> None:
        record = self._record
        self._record = None
        if record is not None:
            record.finish()

    def open(self, record_id: str) -> Any:
        """Open or continue the record with this id. The result has the methods `log` and `finish`."""
        raise NotImplementedError


def _read_position(path: Path) -> tuple[str, int]:
    """Read the id of a run's record and its last step.

    Raises:
        UserError: The file is damaged.
    """
    try:
        stored = read_json(path)
        return str(stored["id"]), int(stored["step"])
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{path}: cannot read id and step of the record ({type(error).__name__}: {error}): restore the file, or "
            "delete it to begin a new record"
        ) from None


class WeightsAndBiases(Tracker):
    """Sink for Weights & Biases (https://docs.wandb.ai). The record is named after the run directory.

    Project and mode come from its own variables, such as WANDB_MODE=offline.
    """

    name = "wandb"

    def open(self, record_id: str) -> Any:
        # Imported late, because only runs that ask for it need the package.
        import wandb

        directory = self.run.folder.directory.absolute()
        return wandb.init(
            name=directory.name,
            id=record_id,
            resume="allow",
            dir=str(directory),
            config=mask_secrets_in_json(self.run.config.model_dump(mode="json")),
            # The run's own lines stay as they are.
            settings=wandb.Settings(console="off"),
        )


class Trackio(Tracker):
    """Sink for Trackio (https://huggingface.co/docs/trackio), a local dashboard. The record is named after the run directory.

    Its folder comes from TRACKIO_DIR, and its project from TRACKIO_PROJECT.
    """

    name = "trackio"

    def open(self, record_id: str) -> Any:
        # Imported late, because only runs that ask for it need the package.
        import trackio

        folder = self.run.folder.directory.absolute()
        return trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "megatape"),
            name=f"{folder.name}-{record_id}",
            resume="allow",
            config=mask_secrets_in_json(self.run.config.model_dump(mode="json")),
        )
