"""The sections around training: where a run writes, and how often it evaluates, saves and logs."""

from typing import Annotated

from pydantic import AfterValidator, Field, PositiveInt, field_validator

from megatape import imports
from megatape.config.section import Compared, Free, JsonList, PathText, Registered, Section
from megatape.errors import ConfigError
from megatape.registry import CALLBACKS, SINKS


class RunConfig(Section):
    """Where the run writes."""

    directory: Free[PathText] = Field(
        min_length=1, description="folder for config.json, metrics.jsonl, tensorboard/ and checkpoints/"
    )
    imports: Free[JsonList[PathText]] = Field(
        (),
        validate_default=True,
        description="modules of your own that the command was given by --import: a record, from which nothing is imported",
    )

    @field_validator("imports")
    @classmethod
    def _record_given(cls, _: tuple[str, ...]) -> tuple[str, ...]:
        return imports.given()  # among which are those of the file (config.file.parse_config)


class EvaluationConfig(Section):
    """Loss on the validation split during training."""

    interval: Free[PositiveInt] = Field(500, description="steps between evaluations; the last step is always evaluated")
    samples: Compared[PositiveInt] = Field(256, description="validation samples per evaluation, over all ranks")


class CheckpointConfig(Section):
    """When checkpoints are written, and how many are kept."""

    interval: Free[PositiveInt] = Field(1000, description="steps between checkpoints; the last step always writes one")
    keep: Free[PositiveInt] = Field(3, description="number of checkpoints to keep, newest first")
    background: Free[bool] = Field(
        False, description="write checkpoints in a thread, from copies in host memory; the last one in the foreground"
    )


CallbackName = Annotated[str, AfterValidator(Registered(CALLBACKS))]
SinkName = Annotated[str, AfterValidator(Registered(SINKS))]


class LoggingConfig(Section):
    """How often metrics are logged, and where."""

    interval: Free[PositiveInt] = Field(
        10, description="steps between entries of all sinks but metrics.jsonl, which has every step"
    )
    sinks: Free[JsonList[SinkName]] = Field(
        ("jsonl", "tensorboard", "console"),
        description="receivers of the main rank's metrics; jsonl is required",
    )
    callbacks: Free[JsonList[CallbackName]] = Field((), description="names of callbacks of your own, beside the built-in ones")

    @field_validator("sinks")
    @classmethod
    def _keep_the_record(cls, sinks: tuple[str, ...]) -> tuple[str, ...]:
        if "jsonl" not in sinks:
            raise ConfigError('jsonl is missing, the record by which a run resumes and is audited: add "jsonl"')
        return sinks
