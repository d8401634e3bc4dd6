"""What the ranks tell each other in every step, in one all-reduce."""

from dataclasses import dataclass, fields
from typing import Any, Self

from megatape.zero.engine import Engine

Scalar = Any  # a number, or a tensor without dimensions on the engine's device


@dataclass(frozen=True)
class StepStatus:
    """What one rank has to say, or the sum over all ranks.

    Attributes:
        loss: sum of the losses of the step's targets, nats.
        num_nonfinite: ranks with a gradient that is not finite among those that tensor-parallel ranks share.
        square: squared norm of the gradient at ZeRO stage 0.
        num_stop_requests: ranks that were asked to stop.
        num_saves_ended: ranks whose share of the save in flight is written.
        num_unreadable: ranks that cannot read their samples of the next step.
        num_targets: targets of the next step that count in the loss; every tensor-parallel rank counts them.
        digest: of the samples of the next step (order.samples_digest), likewise.
    """

    loss: Scalar = 0.0
    num_nonfinite: Scalar = 0.0
    square: Scalar = 0.0
    num_stop_requests: Scalar = 0.0
    num_saves_ended: Scalar = 0.0
    num_unreadable: Scalar = 0.0
    num_targets: Scalar = 0.0
    digest: Scalar = 0.0

    def sum_over_ranks(self, engine: Engine) -> Self:
        """The sum of each field over all ranks, as numbers of the host. Collective."""
        return type(self)(*engine.sum_over_ranks(*(getattr(self, field.name) for field in fields(self))))
