"""What becomes of steps that went wrong, or that were found to lead there."""

import math
from collections.abc import Iterable
from typing import Any

from megatape.config import TrainingConfig
from megatape.training.spikes import Spikes

CALM_STEPS = 64  # without a spike or a fault: after them a checkpoint is one to go back to, and so many steps led to a spike
REMEMBERED = 1024  # steps with a spike or a fault

Samples = tuple[int, int]  # first and last


class Guard:
    """The decisions of training.on_spike and training.skip_samples. They are the same on all ranks.

    spike: what was unusual about the last step, or "". left_out: samples that a rewind left out."""

    def __init__(self, config: TrainingConfig) -> None:
        self._config = config
        self._spikes = Spikes()
        self._troubled: tuple[int, ...] = ()  # the last steps that had a spike or a fault; a save in the background reads it
        self.left_out: list[Samples] = []
        self.spike = ""

    def leaves_out(self, samples: range) -> bool:
        """Whether the step that would see these samples is left out, whatever its loss."""
        ranges = [*self._config.skip_samples, *self.left_out]
        return any(first < samples.stop and samples.start <= last for first, last in ranges)

    def judge(self, loss: float, grad_norm: float) -> str:
        """Why the step must not be taken, or ""."""
        self.spike = self._spikes.find(loss, grad_norm)
        return "" if self._config.on_spike == "log" else self.spike

    def made(self, step: int, loss: float, grad_norm: float, fault: str) -> None:
        """Note a step that was computed, whose loss and norm are finite unless it has another fault than a spike."""
        if not fault or fault == self.spike:
            self._spikes.add(loss, grad_norm)
        if fault or self.spike:
            self._troubled = (*self._troubled, step)[-REMEMBERED:]

    def may_go_back(self, samples: int) -> bool:
        """Whether to go back after a spike, `samples` having been seen.

        Not within CALM_STEPS steps after the samples of a rewind, which did not help: the next would follow at every step."""
        end = self.left_out[-1][1] + 1 if self.left_out else -math.inf
        return samples - end > CALM_STEPS * self._config.global_batch_size

    def calm(self, checkpoints: Iterable[int], step: int) -> list[int]:
        """Those of the checkpoints, by step, that CALM_STEPS steps without a spike or a fault have followed at `step`. The
        newest is first."""
        return [saved for saved in self._candidates(checkpoints) if saved + CALM_STEPS <= step][::-1]

    def spared(self, checkpoints: Iterable[int], step: int) -> list[int]:
        """The checkpoints to keep at `step` for a rewind: the newest calm one, and the oldest that may become the next.

        All that may would be CALM_STEPS checkpoints at an interval of 1; none, and checkpoint.keep could remove each of them
        before enough steps have followed it."""
        if self._config.on_spike != "rewind":
            return []
        candidates = self._candidates(checkpoints)
        num_calm = sum(saved + CALM_STEPS <= step for saved in candidates)
        return candidates[max(num_calm - 1, 0) : num_calm + 1]

    def _candidates(self, checkpoints: Iterable[int]) -> list[int]:
        """Checkpoints that no spike or fault followed within CALM_STEPS, by which they may have led there. In order."""
        return sorted(saved for saved in checkpoints if not any(saved < step <= saved + CALM_STEPS for step in self._troubled))

    def went_back(self, earlier: list[Samples], samples: range) -> None:
        """See no sample of the steps that led to a spike, nor of `earlier` ones. samples: those since the checkpoint that the
        run continues from."""
        batch = self._config.global_batch_size
        self.left_out = [*earlier, (max(samples.start, samples.stop - CALM_STEPS * batch), samples.stop - 1)]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"spikes": self._spikes.state(), "left_out": self.left_out, "troubled": self._troubled}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what a checkpoint kept; one of an earlier version kept nothing."""
        self._spikes.load(state.get("spikes", {}))
        self.left_out = [(first, last) for first, last in state.get("left_out", [])]
        self._troubled = tuple(state.get("troubled", ()))
