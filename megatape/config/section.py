"""Base class of all sections: strict parsing, and a resume rule for every field."""

import json
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo

from megatape.errors import ConfigError
from megatape.errors.text_checks import check_word
from megatape.utils.values.documented_model import DocumentedModel

# Validation context for reading a run's recorded configuration without the user's own modules. The run checked it when
# starting, so unregistered names belong to these modules, and checks against a registry are skipped.
RECORDED = {"recorded": True}

Value = TypeVar("Value")


class ResumeRule(Enum):
    """Consequence of changing a field when resuming or comparing runs. Each field declares one, as in `Fixed[int]`."""

    # The field defines the model and must not change on resume.
    FIXED = "fixed"
    # The field defines the samples and must not change on resume.
    SAMPLES = "samples"
    # The field may change on resume. Compared runs must agree on it.
    COMPARED = "compared"
    # Like COMPARED, but the user must confirm a change: numbers or optimizer state then mean something else.
    CONFIRMED = "confirmed"
    # The field does not affect results, beyond rounding.
    FREE = "free"
    # Like FREE, and each host may have its own value.
    LOCAL = "local"

    @property
    def is_compared(self) -> bool:
        """Whether the field may change on resume, but compared runs must agree on it."""
        return self in (ResumeRule.COMPARED, ResumeRule.CONFIRMED)


Fixed = Annotated[Value, ResumeRule.FIXED]
FixedSamples = Annotated[Value, ResumeRule.SAMPLES]
Compared = Annotated[Value, ResumeRule.COMPARED]
Confirmed = Annotated[Value, ResumeRule.CONFIRMED]
Free = Annotated[Value, ResumeRule.FREE]
Local = Annotated[Value, ResumeRule.LOCAL]

# Tuple written as a list in JSON, which strict tuples would not accept.
JsonList = Annotated[tuple[Value, ...], Field(strict=False)]


def _check_path(text: str) -> str:
    if text.startswith("~"):
        raise ConfigError(f"{text!r} begins with ~, which is a home folder to shells alone: write the whole path")
    return check_word(text)


# Path or URL that becomes a word of scripts and launch commands.
PathText = Annotated[str, AfterValidator(_check_path)]


class Section(DocumentedModel):
    """Base class of all sections: immutable, strictly typed, without unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def __hash__(self) -> int:
        # pydantic's own hash fails for dictionaries.
        return hash(json.dumps(self.model_dump(), sort_keys=True))

    def _default(self, name: str, value: Any) -> None:
        """Fill in a field whose default depends on other fields. Only call this while validating the section."""
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)


def check_growing(name: str, stages: Sequence[Section]) -> None:
    """Raise a ConfigError unless every value grows from each warm-up stage to the next.

    Args:
        name: Field with the stages, for the error.
        stages: Stages, all of one type.
    """
    for earlier, later in pairwise(stages):
        for key in type(later).model_fields:
            if getattr(earlier, key) >= getattr(later, key):
                raise ConfigError(f"{name} has {later} after {earlier}: both must grow")


def is_recorded(info: ValidationInfo) -> bool:
    """Whether a recorded configuration is being read without the user's own modules."""
    return info.context == RECORDED
