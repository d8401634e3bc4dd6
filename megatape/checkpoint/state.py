"""Training state in a checkpoint: the content of state.json."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, FiniteFloat, field_serializer, field_validator, model_validator

from megatape.checkpoint.manifest import ANOTHER
from megatape.data.counts import Count
from megatape.data.training.selection import EARLIER_SELECTION, Selection
from megatape.errors import UserError, content_errors
from megatape.utils.json_files import read_json
from megatape.utils.validation import as_type

# Maximum number of samples in a step. A resume computes a digest of the last step's samples.
MAX_STEP_SAMPLES = 2**24


class SpikeState(BaseModel, extra="allow", frozen=True):
    """State of the spike policy.

    Attributes:
        spikes: Values of recent steps by name: losses and gradient norms.
        left_out: First and last sample of each range that rollbacks skip.
        troubled: Recent steps with a spike or a fault.
    """

    spikes: dict[str, list[FiniteFloat]] = {}
    left_out: list[tuple[Count, Count]] = []
    troubled: list[Count] = []


class StepSamples(BaseModel, extra="forbid", frozen=True):
    """Samples of one step.

    Attributes:
        first: First sample, counted from the start of the run.
        last: Last sample.
        digest: Digest of the samples (order.samples_digest).
    """

    first: Count
    last: Count
    digest: int

    @model_validator(mode="after")
    def _check_number(self) -> Self:
        if not 0 <= self.last - self.first < MAX_STEP_SAMPLES:
            raise UserError(f"{self.first} to {self.last} are no samples of a step")
        return self


class Average(BaseModel, frozen=True):
    """Checkpoints whose weights were averaged.

    Attributes:
        run: Folder of their run.
        steps: Step of each checkpoint.
        shares: Share of each checkpoint in the average.
    """

    run: str
    steps: list[Count]
    shares: list[FiniteFloat]


class State(BaseModel, extra="allow", frozen=True):
    """Content of state.json. Keys of other versions are kept. Earlier versions wrote fewer keys.

    Attributes:
        step: Number of steps of the run.
        updates: Number of steps that the optimizer has taken.
        samples: Number of samples consumed.
        tokens: Number of tokens consumed.
        last_step: Samples of the last step. None before the first step, and if an earlier version wrote the state.
        validation_selection: How the run selects validation samples.
        world_size: Number of ranks of the run, None if it is not recorded.
        fingerprints: Fingerprints of tokenizer and data.
        attention: Name of the attention backend, None if it is not recorded.
        guard: State of the spike policy.
        callbacks: State of the callbacks by name.
        config: Resolved configuration of the run.
        average: Set in an average that `megatape average` wrote. Everything else is from the newest of its checkpoints.
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
    guard: SpikeState = SpikeState()
    callbacks: dict[str, Any] = {}
    config: dict[str, Any]
    average: Average | None = None

    @model_validator(mode="before")
    @classmethod
    def _count_updates(cls, content: Any) -> Any:
        # Runs of earlier versions took every step.
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
        """Return the JSON object of state.json."""
        return self.model_dump(exclude_unset=True)


def read_state(path: Path) -> State:
    """Read state.json.

    Raises:
        UserError: Its content is not what a run writes.
    """
    with content_errors(f"{path}: no state of a run", ANOTHER):
        return as_type(read_json(path), State)
