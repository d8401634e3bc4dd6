"""Spike policy: whether to log a spike, skip its step, or roll back."""

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from megatape.checkpoint.format.state import SpikeState
from megatape.config import TrainingConfig
from megatape.config.sections.batches import BatchSizes
from megatape.zero.update.decision import Apply, Decision, Skip, Update

# Same rule as OLMo-core's SkipStepOptimizer (https://github.com/allenai/OLMo-core): a loss or gradient norm more than SIGMAS
# standard deviations above the mean of the last WINDOW steps is a spike, once there are MIN_STEPS steps.
WINDOW = 128
MIN_STEPS = 64
SIGMAS = 6.0

# A checkpoint followed by this many clean steps is stable: a rollback may return to it. Afterwards, the samples of up to this
# many steps before the spike are skipped.
STABLE_STEPS = 64

# Maximum number of remembered unstable steps.
REMEMBERED = 1024

# First and last sample.
SampleRange = tuple[int, int]


class Rollback(Skip):
    """Decision to skip a step, and to return to a stable checkpoint if one exists."""


class SpikePolicy:
    """Decides by training.on_spike and training.skip_samples. The decisions are the same on all ranks.

    The policy remembers recent losses and gradient norms, including spikes, so a lasting level becomes the usual one.
    Checkpoints store them, so that a resumed run makes the same decisions.

    Args:
        config: Training configuration.
        batches: Batch sizes.

    Attributes:
        rolled_back: Samples skipped after rollbacks.
    """

    def __init__(self, config: TrainingConfig, batches: BatchSizes) -> None:
        self._config = config
        self._batches = batches
        self._window: dict[str, deque[float]] = {
            "loss": deque(maxlen=WINDOW),
            "gradient norm": deque(maxlen=WINDOW),
        }
        # Recent steps that had a spike or were not finite. A tuple, because a save in the background reads it.
        self._unstable_steps: tuple[int, ...] = ()
        self.rolled_back: list[SampleRange] = []

    def is_configured_to_skip(self, samples: range) -> bool:
        """Whether training.skip_samples has one of a step's samples."""
        return _overlaps(samples, self._config.skip_samples)

    def is_rolled_back(self, samples: range) -> bool:
        """Whether a rollback skips one of a step's samples."""
        return _overlaps(samples, self.rolled_back)

    def decide(self, loss: float, grad_norm: float) -> Decision:
        """Decide about a computed step. The engine skips non-finite steps itself.

        Args:
            loss: Mean loss over the step's targets, nats.
            grad_norm: Gradient norm before clipping.
        """
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            return Apply()
        anomaly = self._describe_anomaly(loss, grad_norm)
        if anomaly is None or self._config.on_spike == "log":
            return Apply(anomaly)
        if self._config.on_spike == "skip":
            return Skip(anomaly)
        return Rollback(anomaly)

    def observe(self, step: int, loss: float, update: Update) -> None:
        """Remember a computed step.

        Args:
            step: Step number, from 1.
            loss: Mean loss over the step's targets, nats.
            update: Result of the update.
        """
        if update.nonfinite_reason is None:
            self._window["loss"].append(loss)
            self._window["gradient norm"].append(update.grad_norm)
        if update.nonfinite_reason is not None or update.decision.anomaly is not None:
            self._unstable_steps = (*self._unstable_steps, step)[-REMEMBERED:]

    def may_roll_back(self, samples: int) -> bool:
        """Whether to roll back after a spike, given the number of samples seen so far.

        Not within STABLE_STEPS steps after skipped samples: the last rollback did not help, and the run would roll back again
        and again.
        """
        if not self.rolled_back:
            return True
        _, last_skipped = self.rolled_back[-1]
        steps_since = self._batches.steps(samples) - self._batches.steps(last_skipped + 1)
        return steps_since > STABLE_STEPS

    def stable_checkpoints(self, checkpoints: Iterable[int], step: int) -> list[int]:
        """Return the stable checkpoints, newest first: those followed by STABLE_STEPS finite steps without a spike.

        Args:
            checkpoints: Steps of all checkpoints.
            step: Current step.
        """
        stable = [saved for saved in self._candidates(checkpoints) if saved + STABLE_STEPS <= step]
        return stable[::-1]

    def protected(self, checkpoints: Iterable[int], step: int) -> list[int]:
        """Return the checkpoints to keep for a rollback: the newest stable one, and the oldest that may become stable next.

        Keeping all candidates could mean STABLE_STEPS checkpoints. If none were kept, pruning (checkpoint.keep) could remove
        each of them before it becomes stable.

        Args:
            checkpoints: Steps of all checkpoints.
            step: Current step.
        """
        if self._config.on_spike != "roll_back":
            return []
        candidates = self._candidates(checkpoints)
        num_stable = sum(saved + STABLE_STEPS <= step for saved in candidates)
        return candidates[max(num_stable - 1, 0) : num_stable + 1]

    def skip_after_rollback(self, state: SpikeState, samples: range) -> SampleRange:
        """Continue from a checkpoint's state, and skip the samples that led to a spike.

        Args:
            state: State stored in the checkpoint, see `saved_state`.
            samples: Samples seen since the checkpoint.

        Returns:
            First and last sample to skip.
        """
        earlier = self.rolled_back
        first_step = max(0, self._batches.steps(samples.stop) - STABLE_STEPS)
        first = max(samples.start, self._batches.consumed(first_step))
        self.restore(state)
        skipped = (first, samples.stop - 1)
        self.rolled_back = [*earlier, skipped]
        return skipped

    def saved_state(self) -> SpikeState:
        """Return the state to store in a checkpoint."""
        window = {name: list(values) for name, values in self._window.items()}
        return SpikeState(window=window, rolled_back=self.rolled_back, unstable_steps=list(self._unstable_steps))

    def restore(self, state: SpikeState) -> None:
        """Continue from a checkpoint's state. Earlier versions stored less."""
        for name, values in self._window.items():
            values.clear()
            values.extend(state.window.get(name, []))
        self.rolled_back = list(state.rolled_back)
        self._unstable_steps = tuple(state.unstable_steps)

    def _describe_anomaly(self, loss: float, grad_norm: float) -> str | None:
        """Return a description of a spike, or None."""
        step = {"loss": loss, "gradient norm": grad_norm}
        for name, value in step.items():
            values = self._window[name]
            if len(values) < MIN_STEPS:
                continue
            recent = np.array(values)
            mean = recent.mean()
            deviation = recent.std()
            threshold = mean + SIGMAS * deviation
            # If all recent values are equal, there is no deviation to judge by.
            if threshold > mean and value > threshold:
                distance = (value - mean) / deviation
                return (
                    f"the {name} {value:.4g} is {distance:.1f} standard deviations above the mean {mean:.4g} of the last "
                    f"{len(values)} steps"
                )
        return None

    def _candidates(self, checkpoints: Iterable[int]) -> list[int]:
        """Return checkpoints without an unstable step in the next STABLE_STEPS steps, which they may have led to, in order."""
        candidates = []
        for saved in sorted(checkpoints):
            followers = range(saved + 1, saved + STABLE_STEPS + 1)
            if not any(step in followers for step in self._unstable_steps):
                candidates.append(saved)
        return candidates


def _overlaps(samples: range, ranges: Iterable[SampleRange]) -> bool:
    """Whether one of the samples is in one of the ranges."""
    return any(first < samples.stop and samples.start <= last for first, last in ranges)
