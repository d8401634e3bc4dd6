"""Results of steps, without a model."""

from megatape.training.steps.output import ComputedStep, SkipReason, StepOutput
from megatape.training.steps.status import BatchCounts, Requests, StepStatus
from megatape.zero.passes.pass_result import GradientSums
from megatape.zero.update.decision import Apply, Update


def make_output(
    step: int, fault: str | None = None, not_computed: SkipReason | None = None, num_saves_ended: float = 0.0
) -> StepOutput:
    """Return the result of a step of eight samples: skipped for a fault or a reason, or taken."""
    status = StepStatus(GradientSums(), BatchCounts(), Requests(0.0, num_saves_ended))
    computed = None
    if not_computed is None:
        computed = ComputedStep(1.0, Update(1.0, fault, Apply()))
    return StepOutput(step, range(8 * step - 8, 8 * step), 0.1, 0, status, computed, not_computed)
