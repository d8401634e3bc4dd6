"""Results of steps, without a model."""

from megatape.training.steps.output import ComputedStep, SkipReason, StepOutput
from megatape.training.steps.status import BatchCounts, Requests, StepStatus
from megatape.zero.pass_result import GradientSums
from megatape.zero.update import Take, Update


def make_output(
    step: int, fault: str | None = None, skip_reason: SkipReason | None = None, num_saves_ended: float = 0.0
) -> StepOutput:
    """Return the result of a step of eight samples: skipped for a fault or a reason, or taken."""
    status = StepStatus(GradientSums(), BatchCounts(), Requests(0.0, num_saves_ended))
    computed = None
    if skip_reason is None:
        computed = ComputedStep(1.0, Update(1.0, fault, Take()))
    return StepOutput(step, range(8 * step - 8, 8 * step), 0.1, 0, status, computed, skip_reason)
