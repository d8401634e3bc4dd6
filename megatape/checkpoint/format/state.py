"""Training state stored in state.json of a checkpoint."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, FiniteFloat, field_serializer, field_validator, model_validator

from megatape.checkpoint.format.manifest import ANOTHER
from megatape.config.sections.batches import MAX_STEP_SAMPLES
from megatape.data.counts import Count
from megatape.data.training.selection import EARLIER_SELECTION, Selection
from megatape.errors import UserError, content_errors
from megatape.utils.files.json_files import read_json
from megatape.utils.values.validation import as_type


class SpikeState(BaseModel, extra="allow", frozen=True, populate_by_name=True):
    """Spike policy state. Its names in state.json are those of version 0.1: the aliases.

    Attributes:
        window: Recent values by name: losses and gradient norms.
        rolled_back: First and last sample of each range skipped by rollbacks.
        unstable_steps: Recent steps that had a spike, or a loss or gradient that is not finite.
    """

    window: dict[str, list[FiniteFloat]] = Field({}, alias="spikes")
    rolled_back: list[tuple[Count, Count]] = Field([], alias="left_out")
    unstable_steps: list[Count] = Field([], alias="troubled")


class StepSamples(BaseModel, extra="forbid", frozen=True):
    """Samples in one step.

    Attributes:
        first: First sample, counting from the start of the run.
        last: Last sample.
        digest: Sample digest (order.samples_digest).
    """

    first: Count
    last: Count
    digest: int

    @model_validator(mode="after")
    def _check_number(self) -> Self:
        if not 0 <= self.last - self.first < MAX_STEP_SAMPLES:
            raise UserError(f"{self.first} to {self.last} are not the samples of a step")
        return self


class Average(BaseModel, frozen=True):
    """Checkpoints whose weights were averaged.

    Attributes:
        run: Run directory.
        steps: Step of each checkpoint.
        shares: Each checkpoint's share in the average.
    """

    run: str
    steps: list[Count]
    shares: list[FiniteFloat]


class StateFile(BaseModel, extra="allow", frozen=True, populate_by_name=True):
    """Content of state.json. Keys from other versions are kept. Earlier versions wrote fewer keys.

    Attributes:
        step: Steps made by the run.
        updates: Updates made by the optimizer: steps that were not skipped.
        samples: Samples consumed.
        tokens: Tokens consumed.
        last_step: Samples in the last step, or None before the first step, and if an earlier version wrote the state.
        validation_selection: Rule by which the run selects validation samples.
        world_size: Number of ranks, or None if it is not recorded.
        fingerprints: Tokenizer and data fingerprints.
        attention: Attention backend, or None if it is not recorded.
        spike_policy: Spike policy state, "guard" in the file.
        callbacks: Callback state by name.
        config: Resolved run configuration.
        average: Set in averages written by `megatape average`, where all else is from the newest averaged checkpoint.
    """

    step: Count
    updates: Count
    samples: Count
    tokens: Count
    last_step: StepSamples | None = None
    validation_selection: Selection = EARLIER_SELECTION
    world_size: int | None = None
    fingerprints: dict[str, str]
    attention: str | None = None
    spike_policy: SpikeState = Field(SpikeState(), alias="guard")
    callbacks: dict[str, Any] = {}
    config: dict[str, Any]
    average: Average | None = None

    @model_validator(mode="before")
    @classmethod
    def _count_updates(cls, content: Any) -> Any:
        # Earlier versions never skipped an update.
        if isinstance(content, dict) and "step" in content:
            return {"updates": content["step"]} | content
        return content

    @field_validator("last_step", mode="before")
    @classmethod
    def _read_last_step(cls, value: Any) -> Any:
        if value == {}:
            return None
        return value

    @field_serializer("last_step")
    def _write_last_step(self, value: StepSamples | None) -> dict[str, int]:
        if value is None:
            return {}
        return value.model_dump()

    def content(self) -> dict[str, Any]:
        """Return the content as a JSON object."""
        return self.model_dump(exclude_unset=True, by_alias=True)


def read_state(path: Path) -> StateFile:
    """Read state.json.

    Raises:
        UserError: Its content is not what a run writes.
    """
    with content_errors(f"{path}: no state of a run", ANOTHER):
        return as_type(read_json(path), StateFile)
