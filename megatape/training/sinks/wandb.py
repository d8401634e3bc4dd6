"""Weights & Biases (https://docs.wandb.ai). Project and mode come from its own variables, such as WANDB_MODE=offline."""

import hashlib
from typing import Any

from megatape.training.callbacks.callback import RunContext, Sink
from megatape.training.step import StepMetrics


class WeightsAndBiases(Sink):
    """A run of its own for each folder, which a resumed run continues."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        import wandb  # here, because only who asks for it needs the package

        directory = run.folder.directory.absolute()
        self._run: Any = wandb.init(
            name=directory.name,
            id=hashlib.sha256(str(directory).encode()).hexdigest()[:16],
            resume="allow",
            dir=str(directory),
            config=run.config.model_dump(),
        )

    def write(self, metrics: StepMetrics) -> None:
        self._run.log(metrics.values(), step=metrics.step)

    def close(self) -> None:
        self._run.finish()
