"""How far a run is."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TrainState:
    """Counts of a run, beside weights and optimizer state.

    Attributes:
        sequence_length: tokens of a sample.
        step: steps that were made, skipped ones included.
        samples: samples of these steps, over all ranks.
        updates: steps that changed the weights, which the optimizer counts.
        last_step: first and last sample of the last step, and their digest.
    """

    sequence_length: int
    step: int = 0
    samples: int = 0
    updates: int = 0
    last_step: dict[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens of the samples seen so far."""
        return self.samples * self.sequence_length

    def advance(self, samples: range, digest: int, updated: bool) -> None:
        """Count a step that saw these samples."""
        self.last_step = {"first": samples[0], "last": samples[-1], "digest": digest}
        self.step, self.samples, self.updates = self.step + 1, samples.stop, self.updates + updated

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        names = ("step", "updates", "samples", "tokens", "last_step")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what a checkpoint kept."""
        self.step, self.samples, self.updates = state["step"], state["samples"], state["updates"]
        self.last_step = state.get("last_step", {})  # earlier versions kept none
