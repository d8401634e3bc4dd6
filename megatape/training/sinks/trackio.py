"""Trackio (https://huggingface.co/docs/trackio), a local dashboard of runs. Its folder comes from TRACKIO_DIR."""

import os
from typing import Any

from megatape.training.sinks.tracker import Tracker


class Trackio(Tracker):
    """A run of Trackio, by the name of the run's folder and an id. Its project comes from TRACKIO_PROJECT."""

    name = "trackio"

    def open(self, record_id: str) -> Any:
        import trackio  # here, because only a run that asks for it needs the package

        return trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "megatape"),
            name=f"{self.run.folder.directory.absolute().name}-{record_id}",
            resume="allow",
            config=self.run.config.model_dump(mode="json"),
        )
