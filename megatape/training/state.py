"""Progress of a run: the counts that checkpoints store besides weights and optimizer state."""

from dataclasses import dataclass, field
from typing import Any

from megatape.data.training.selection import EARLIER_SELECTION, NEW_SELECTION, Selection


@dataclass
class TrainState:
    """Counts of a run.

    Attributes:
        sequence_length: Tokens per sample.
        step: Number of completed steps, including skipped ones.
        samples: Number of samples in these steps, over all ranks.
        updates: Number of steps that changed the weights, as the optimizer counts them.
        last_step: First and last sample of the last step, and their digest.
        selection: Selection of the evaluations' samples. A run keeps its first selection, so that its whole curve is measured
            on the same samples.
    """

    sequence_length: int
    step: int = 0
    samples: int = 0
    updates: int = 0
    last_step: dict[str, int] = field(default_factory=dict)
    selection: Selection = NEW_SELECTION

    @property
    def tokens(self) -> int:
        """Number of tokens in the samples seen so far."""
        return self.samples * self.sequence_length

    def advance(self, samples: range, digest: int, updated: bool) -> None:
        """Count a step.

        Args:
            samples: Samples of the step.
            digest: Digest of the samples.
            updated: Whether the step changed the weights.
        """
        self.last_step = {"first": samples[0], "last": samples[-1], "digest": digest}
        self.step += 1
        self.samples = samples.stop
        self.updates += updated

    def state_dict(self) -> dict[str, Any]:
        """Return the counts for a checkpoint."""
        return {
            "step": self.step,
            "updates": self.updates,
            "samples": self.samples,
            "tokens": self.tokens,
            "last_step": self.last_step,
            "validation_selection": self.selection,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the counts of a checkpoint. Earlier versions stored neither `last_step` nor the selection."""
        self.step = state["step"]
        self.samples = state["samples"]
        self.updates = state["updates"]
        self.last_step = state.get("last_step", {})
        self.selection = state.get("validation_selection", EARLIER_SELECTION)
