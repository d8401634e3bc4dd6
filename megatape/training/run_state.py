"""State that checkpoints store in state.json, beside weights and optimizer state."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from megatape.checkpoint.format.state import StateFile
from megatape.training.callbacks.collection import Callbacks
from megatape.training.progress import Progress
from megatape.training.steps.spike_policy import SpikePolicy


@dataclass(frozen=True)
class RunFacts:
    """Facts recorded in checkpoints, so that a resumed run can report changes, or end because of them.

    Attributes:
        world_size: Number of ranks.
        fingerprints: Hashes of tokenizer and training data.
        attention: Attention backend of the first layer.
        config: Configuration without secrets.
        tokenizer: Name -> content of the tokenizer's files.
    """

    world_size: int
    fingerprints: dict[str, str]
    attention: str
    config: dict[str, Any]
    tokenizer: Mapping[str, bytes]


@dataclass(frozen=True)
class RunState:
    """State of a run beside weights and optimizer state. A SavedRun (checkpoint/interfaces.py).

    Attributes:
        progress: Counts of steps, samples and updates.
        policy: Spike policy.
        callbacks: Callbacks, some of which have a state.
        facts: Facts recorded in checkpoints.
    """

    progress: Progress
    policy: SpikePolicy
    callbacks: Callbacks
    facts: RunFacts

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self.progress.step

    @property
    def tokenizer(self) -> Mapping[str, bytes]:
        """Name -> content of the tokenizer's files."""
        return self.facts.tokenizer

    def protected(self, checkpoints: Iterable[int], newest: int) -> Collection[int]:
        """Return the steps of checkpoints kept for a rollback, see SavedRun."""
        return self.policy.protected(checkpoints, newest)

    def saved_state(self) -> StateFile:
        """Return the state to store in a checkpoint."""
        return StateFile(
            step=self.progress.step,
            updates=self.progress.updates,
            samples=self.progress.samples,
            tokens=self.progress.tokens,
            last_step=self.progress.last_step,
            validation_selection=self.progress.selection,
            world_size=self.facts.world_size,
            fingerprints=self.facts.fingerprints,
            attention=self.facts.attention,
            spike_policy=self.policy.saved_state(),
            callbacks=self.callbacks.state_dict(),
            config=self.facts.config,
        )
