"""Trackio (https://huggingface.co/docs/trackio), a local dashboard of runs. Its folder comes from TRACKIO_DIR."""

import os
from typing import Any

from megatape.training.callbacks.callback import RunContext, Sink
from megatape.training.step import StepMetrics


class Trackio(Sink):
    """A run by the name of the run's folder, which a resumed run continues. Its project comes from TRACKIO_PROJECT."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        import trackio  # here, because only who asks for it needs the package

        self._run: Any = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "megatape"),
            name=run.folder.directory.absolute().name,
            resume="allow",
            config=run.config.model_dump(),
        )

    def write(self, metrics: StepMetrics) -> None:
        self._run.log(metrics.values(), step=metrics.step)

    def close(self) -> None:
        self._run.finish()
