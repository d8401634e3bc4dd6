"""Training state in a checkpoint: the content of state.json."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, FiniteFloat, field_validator

from megatape.checkpoint.manifest import ANOTHER
from megatape.data.counts import Count
from megatape.data.training.selection import EARLIER_SELECTION, Selection
from megatape.errors import UserError, content_errors
from megatape.utils.json_files import read_json
from megatape.utils.validation import as_type

# Maximum number of samples in a step. A resume computes a digest of the last step's samples.
MAX_STEP_SAMPLES = 2**24


class SpikeState(BaseModel, extra="allow"):
    """State of the spike policy.

    Attributes:
        spikes: Values of recent steps by name: losses and gradient norms.
        left_out: First and last sample of each range that rollbacks skip.
        troubled: Recent steps with a spike or a fault.
    """

    spikes: dict[str, list[FiniteFloat]] = {}
    left_out: list[tuple[Count, Count]] = []
    troubled: list[Count] = []


class Average(BaseModel):
    """Checkpoints whose weights were averaged.

    Attributes:
        run: Folder of their run.
        steps: Step of each checkpoint.
        shares: Share of each checkpoint in the average.
    """

    run: str
    steps: list[Count]
    shares: list[FiniteFloat]


class State(BaseModel, extra="allow"):
    """Content of state.json. A run gets back all of it; the fields here are checked. Earlier versions wrote fewer fields.

    Attributes:
        step: Number of steps of the run.
        updates: Number of steps that the optimizer has taken.
        samples: Number of samples consumed.
        tokens: Number of tokens consumed.
        fingerprints: Fingerprints of tokenizer and data.
        config: Resolved configuration of the run.
        attention: Name of the attention backend.
        guard: State of the spike policy.
        callbacks: State of the callbacks by name.
        last_step: First sample, last sample and digest of the last step's samples. Empty before the first step.
        validation_selection: How the run selects validation samples.
        average: Set in an average that `megatape average` wrote. Everything else is from the newest of its checkpoints.
    """

    step: Count
    updates: Count = 0
    samples: Count
    tokens: Count
    fingerprints: dict[str, str]
    config: dict[str, Any]
    attention: str = ""
    guard: SpikeState = SpikeState()
    callbacks: dict[str, Any] = {}
    last_step: dict[str, int] = {}
    validation_selection: Selection = EARLIER_SELECTION
    average: Average | None = None

    @field_validator("last_step")
    @classmethod
    def _check_last_step(cls, last: dict[str, int]) -> dict[str, int]:
        if not last:
            return last
        has_fields = last.keys() == {"first", "last", "digest"}
        if not has_fields or not 0 <= last["last"] - last["first"] < MAX_STEP_SAMPLES:
            raise UserError(f"{last} are no samples of a step")
        return last


def read_state(path: Path) -> dict[str, Any]:
    """Read state.json.

    Raises:
        UserError: Its content is not what a run writes.
    """
    with content_errors(f"{path}: no state of a run", ANOTHER):
        state = as_type(read_json(path), State).model_dump(exclude_unset=True)
    # Runs of earlier versions took every step.
    state.setdefault("updates", state["step"])
    return state
