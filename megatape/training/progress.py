"""Progress of a run: counts stored in checkpoints."""

from dataclasses import dataclass

from megatape.checkpoint.format.state import StateFile, StepSamples
from megatape.data.training.selection import NEW_SELECTION, Selection


@dataclass
class Progress:
    """Counts of steps, samples and updates.

    Attributes:
        sequence_length: Tokens per sample.
        step: Completed steps, including skipped ones.
        samples: Samples in these steps, over all ranks.
        updates: Steps that changed the weights, as counted by the optimizer.
        last_step: Samples of the last step, or None before the first step.
        selection: Rule for selecting validation samples. A run keeps its first rule, so that its whole curve is measured on the
            same samples.
    """

    sequence_length: int
    step: int = 0
    samples: int = 0
    updates: int = 0
    last_step: StepSamples | None = None
    selection: Selection = NEW_SELECTION

    @property
    def tokens(self) -> int:
        """Tokens in the samples seen so far."""
        return self.samples * self.sequence_length

    def advance(self, samples: range, digest: int, updated: bool) -> None:
        """Count a step.

        Args:
            samples: Samples of the step.
            digest: Their digest.
            updated: Whether the step changed the weights.
        """
        self.last_step = StepSamples(first=samples[0], last=samples[-1], digest=digest)
        self.step += 1
        self.samples = samples.stop
        self.updates += updated

    def restore(self, saved: StateFile) -> None:
        """Continue from the counts of a checkpoint."""
        self.step = saved.step
        self.samples = saved.samples
        self.updates = saved.updates
        self.last_step = saved.last_step
        self.selection = saved.validation_selection
