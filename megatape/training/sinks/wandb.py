"""Weights & Biases (https://docs.wandb.ai). Project and mode come from its own variables, such as WANDB_MODE=offline."""

from typing import Any

from megatape.training.sinks.tracker import Tracker


class WeightsAndBiases(Tracker):
    """A run of W&B, by the name of the run's folder."""

    name = "wandb"

    def open(self, record_id: str) -> Any:
        import wandb  # here, because only a run that asks for it needs the package

        directory = self.run.folder.directory.absolute()
        return wandb.init(
            name=directory.name,
            id=record_id,
            resume="allow",
            dir=str(directory),
            config=self.run.config.model_dump(mode="json"),
            settings=wandb.Settings(console="off"),  # the run's own lines stay as they are
        )
