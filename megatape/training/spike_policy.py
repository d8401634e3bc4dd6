"""Spike policy: log, skip or roll back."""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from megatape.config import TrainingConfig
from megatape.config.training import BatchSizes
from megatape.optim.gated import Decision

# As OLMo-core's SkipStepOptimizer (https://github.com/allenai/OLMo-core): WINDOW steps are remembered, fewer than FEWEST give
# no verdict, and a step is a spike beyond SIGMAS standard deviations above their mean.
WINDOW = 128
FEWEST = 64
SIGMAS = 6.0
STABLE_STEPS = 64  # without a spike or a fault: after them a checkpoint is one to go back to, and they led to a spike
REMEMBERED = 1024  # steps with a spike or a fault

SampleRange = tuple[int, int]  # first and last


class Take(Decision):
    """Decision to take a step."""


class Skip(Decision):
    """Decision to skip a step: weights and optimizer state stay as they are."""

    applies_update = False


class Rollback(Decision):
    """Decision to skip a step, and to return to a stable checkpoint if there is one."""

    applies_update = False


class SpikePolicy:
    """The decisions of training.on_spike and training.skip_samples. They are the same on all ranks.

    Losses and gradient norms of the last steps are remembered, those of spikes included: a level that lasts becomes the usual
    one. A checkpoint keeps them, so that a resumed run decides alike.

    Attributes:
        rolled_back: samples that rollbacks skip.
    """

    def __init__(self, config: TrainingConfig, batches: BatchSizes) -> None:
        self._config = config
        self._batches = batches
        self._window: dict[str, deque[float]] = {name: deque(maxlen=WINDOW) for name in ("loss", "gradient norm")}
        self._troubled: tuple[int, ...] = ()  # the last steps that had a spike or a fault; a save in the background reads it
        self.rolled_back: list[SampleRange] = []

    def skips(self, samples: range) -> bool:
        """Whether the step that would see these samples is skipped without being computed."""
        ranges = [*self._config.skip_samples, *self.rolled_back]
        return any(first < samples.stop and samples.start <= last for first, last in ranges)

    def decide(self, loss: float, grad_norm: float) -> Decision:
        """The decision on a step with this loss and this norm before clipping. The engine skips what is not finite."""
        reason = self._unusual(loss, grad_norm) if math.isfinite(loss) and math.isfinite(grad_norm) else ""
        if not reason or self._config.on_spike == "log":
            return Take(reason)
        return Skip(reason) if self._config.on_spike == "skip" else Rollback(reason)

    def observe(self, step: int, loss: float, grad_norm: float, decision: Decision, has_fault: bool) -> None:
        """Remember a computed step. has_fault: its loss or gradient is not finite."""
        if not has_fault:
            for values, value in zip(self._window.values(), (loss, grad_norm), strict=True):
                values.append(value)
        if has_fault or decision.reason:
            self._troubled = (*self._troubled, step)[-REMEMBERED:]

    def may_roll_back(self, samples: int) -> bool:
        """Whether to go back after a spike, `samples` having been seen.

        Not within STABLE_STEPS steps after the samples of a rollback, which did not help: the next would follow at every
        step.
        """
        end = self.rolled_back[-1][1] + 1 if self.rolled_back else None
        return end is None or self._batches.steps(samples) - self._batches.steps(end) > STABLE_STEPS

    def stable(self, checkpoints: Iterable[int], step: int) -> list[int]:
        """Those of the checkpoints, by step, that STABLE_STEPS steps without a spike or a fault have followed at `step`.

        The newest is first.
        """
        return [saved for saved in self._candidates(checkpoints) if saved + STABLE_STEPS <= step][::-1]

    def protected(self, checkpoints: Iterable[int], step: int) -> list[int]:
        """The checkpoints to keep at `step` for a rollback: the newest stable one, and the oldest that may become the next.

        All that may would be STABLE_STEPS checkpoints at an interval of 1; none, and checkpoint.keep could remove each of them
        before enough steps have followed it.
        """
        if self._config.on_spike != "rewind":
            return []
        candidates = self._candidates(checkpoints)
        num_stable = sum(saved + STABLE_STEPS <= step for saved in candidates)
        return candidates[max(num_stable - 1, 0) : num_stable + 1]

    def roll_back(self, state: dict[str, Any], samples: range) -> None:
        """Continue from what a checkpoint kept, and skip the samples of the steps that led to a spike.

        Args:
            state: see `state_dict`.
            samples: those since the checkpoint.
        """
        earlier = self.rolled_back
        first = self._batches.consumed(max(0, self._batches.steps(samples.stop) - STABLE_STEPS))
        self.load_state_dict(state)
        self.rolled_back = [*earlier, (max(samples.start, first), samples.stop - 1)]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        window = {name: list(values) for name, values in self._window.items()}
        return {"spikes": window, "left_out": self.rolled_back, "troubled": self._troubled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what a checkpoint kept; one of an earlier version kept less."""
        for name, values in self._window.items():
            values.clear()
            values.extend(state.get("spikes", {}).get(name, []))
        self.rolled_back = [(first, last) for first, last in state.get("left_out", [])]
        self._troubled = tuple(state.get("troubled", ()))

    def _unusual(self, loss: float, grad_norm: float) -> str:
        for (name, values), value in zip(self._window.items(), (loss, grad_norm), strict=True):
            if len(values) < FEWEST:
                continue
            recent = np.array(values)
            mean = recent.mean()
            deviation = recent.std()
            if value > mean + SIGMAS * deviation > mean:
                return (
                    f"the {name} {value:.4g} is {(value - mean) / deviation:.1f} standard deviations above the mean {mean:.4g} "
                    f"of the last {len(values)} steps"
                )
        return ""

    def _candidates(self, checkpoints: Iterable[int]) -> list[int]:
        """Checkpoints that no spike or fault followed within STABLE_STEPS, by which they may have led there. In order."""
        return sorted(
            saved for saved in checkpoints if not any(saved < step <= saved + STABLE_STEPS for step in self._troubled)
        )
