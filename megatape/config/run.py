"""The sections around training: where a run writes, and how often it evaluates, saves and logs."""

from pydantic import Field, PositiveInt

from megatape.config.section import Compared, Free, PathText, Section


class RunConfig(Section):
    """Where the run writes."""

    directory: Free[PathText] = Field(
        min_length=1, description="folder for config.json, metrics.jsonl, tensorboard/ and checkpoints/"
    )


class EvaluationConfig(Section):
    """Loss on the validation split during training."""

    interval: Free[PositiveInt] = Field(500, description="steps between evaluations; the last step is always evaluated")
    samples: Compared[PositiveInt] = Field(256, description="validation samples per evaluation, over all ranks")


class CheckpointConfig(Section):
    """When checkpoints are written, and how many are kept."""

    interval: Free[PositiveInt] = Field(1000, description="steps between checkpoints; the last step always writes one")
    keep: Free[PositiveInt] = Field(3, description="number of checkpoints to keep, newest first")
    background: Free[bool] = Field(
        False, description="write checkpoints in a thread, from copies in host memory; the last step's is waited for"
    )


class LoggingConfig(Section):
    """How often metrics are logged."""

    interval: Free[PositiveInt] = Field(
        10, description="steps between console and TensorBoard entries; metrics.jsonl has every step"
    )
