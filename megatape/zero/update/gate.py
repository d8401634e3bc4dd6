"""Gate before the optimizer's step."""

import math

from megatape.zero.stages.stage import ZeroStage
from megatape.zero.update.decision import Apply, Decide, Decision, Update
from megatape.zero.update.weight_step import WeightStep


class UpdateGate:
    """Decides once per step whether the update changes the weights, and carries its result.

    `Engine.update` opens the gate before DeepSpeed's step and closes it afterwards. In between, DeepSpeed calls the optimizer
    once for each parameter group. At the first call the gradient norm is known, and the gate decides. The other calls follow
    this decision.

    Args:
        stage: ZeRO stage, which knows the gradient norm.
        weight_step: Step that changes the weights.
    """

    def __init__(self, stage: ZeroStage, weight_step: WeightStep) -> None:
        self._stage = stage
        self._weight_step = weight_step
        self._nonfinite_reason: str | None = None
        # Set while the gate is open.
        self._decide: Decide | None = None
        # Set from the first call of the optimizer until the gate is closed.
        self._update: Update | None = None

    def open(self, nonfinite_reason: str | None, decide: Decide) -> None:
        """Start an update.

        Args:
            nonfinite_reason: Reason for skipping the update if a loss or gradient is not finite, else None.
            decide: Decides about a finite update.
        """
        self._nonfinite_reason = nonfinite_reason
        self._decide = decide
        self._update = None

    def step(self) -> None:
        """Change the weights, unless the update is skipped. GatedOptimizer calls this once for each parameter group."""
        if self._update is None:
            self._update = self._resolve(self._stage.gradient_norm())
        if self._update.is_applied:
            self._weight_step.apply()

    def close(self) -> Update:
        """End the update, and return its result."""
        update = self._update
        if update is None:
            # DeepSpeed found a norm that is not finite, and did not call the optimizer.
            update = self._resolve(math.nan)
        self._decide = None
        self._update = None
        return update

    def _resolve(self, norm: float) -> Update:
        """Decide about the update by its gradient norm before clipping."""
        assert self._decide is not None, "an update outside `Engine.update`"
        reason = self._nonfinite_reason
        if reason is None and not math.isfinite(norm):
            reason = "the gradient norm is not finite"
        decision: Decision = Apply()
        if reason is None:
            decision = self._decide(norm)
        return Update(norm, reason, decision)
