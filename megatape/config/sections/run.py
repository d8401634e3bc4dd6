"""The sections around training: run directory, evaluation, checkpoints, logging and export."""

from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, PositiveInt, ValidationInfo, field_validator, model_validator

from megatape import imports
from megatape.config.kinds import Registered
from megatape.config.section import Compared, Free, JsonList, PathText, Section, is_recorded
from megatape.errors import ConfigError
from megatape.registry import CALLBACKS, FAMILIES, SINKS

CallbackName = Annotated[str, AfterValidator(Registered(CALLBACKS))]
SinkName = Annotated[str, AfterValidator(Registered(SINKS))]
FamilyName = Annotated[str, AfterValidator(Registered(FAMILIES))]

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(Dtype)


class RunConfig(Section):
    """Run directory, and modules of your own.

    Attributes:
        directory: folder for config.json, metrics.jsonl, tensorboard/ and checkpoints/; `--resume
            auto` resumes the run in it
        imports: modules of your own, recorded from --import; nothing is imported because of this
            list
    """

    directory: Free[PathText] = Field(min_length=1)
    imports: Free[JsonList[PathText]] = Field((), validate_default=True)

    @field_validator("imports")
    @classmethod
    def _record_given(cls, recorded: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if is_recorded(info):
            return recorded
        # parse_config has checked that these include the file's own.
        return imports.given()


class EvaluationConfig(Section):
    """Loss on the validation split during training.

    Attributes:
        interval: steps between evaluations; the last step is always evaluated
        samples: validation samples per evaluation, over all ranks, evenly spaced in the split; more
            make the loss less noisy, and the evaluation slower
    """

    interval: Free[PositiveInt] = 500
    samples: Compared[PositiveInt] = 256


class CheckpointConfig(Section):
    """Writing and keeping checkpoints.

    Attributes:
        interval: steps between checkpoints; a run that dies repeats the steps since its last one;
            the last step always writes one
        keep: newest checkpoints to keep; older ones are removed
        background: write checkpoints in a thread while training continues, from copies in host
            memory; the last one is written in the foreground
    """

    interval: Free[PositiveInt] = 1000
    keep: Free[PositiveInt] = 3
    background: Free[bool] = False


class LoggingConfig(Section):
    """Logging of metrics.

    Attributes:
        interval: steps between entries in all sinks except metrics.jsonl, which has every step
        sinks: where the main rank's metrics go; jsonl is required
        callbacks: your own callbacks by name, in addition to the built-in ones
    """

    interval: Free[PositiveInt] = 10
    sinks: Free[JsonList[SinkName]] = ("jsonl", "tensorboard", "console")
    callbacks: Free[JsonList[CallbackName]] = ()

    @field_validator("sinks")
    @classmethod
    def _require_record(cls, sinks: tuple[str, ...]) -> tuple[str, ...]:
        if "jsonl" not in sinks:
            raise ConfigError('jsonl is missing, the record by which a run resumes and is audited: add "jsonl"')
        return sinks


class ExportConfig(Section):
    """Settings of `megatape export`, and exports while training.

    Attributes:
        family: architecture in transformers; default: the first one that has all parts of the model
        dtype: precision of the stored weights; default training.precision
        interval: steps between exports while training, a multiple of checkpoint.interval; each is a
            folder in exports/ of the run directory, and so is that of the last step; null: none
        push: model repository of the Hugging Face hub, such as user/tape-155m, to which each export
            of `interval` is uploaded; a new repository is private
    """

    family: Free[FamilyName | None] = None
    dtype: Free[Dtype | None] = None
    interval: Free[PositiveInt | None] = None
    push: Free[str | None] = None

    @model_validator(mode="after")
    def _check_push(self) -> Self:
        if self.push is not None and self.interval is None:
            raise ConfigError("push needs interval, the steps between exports: set it, or remove push")
        return self
