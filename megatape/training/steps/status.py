"""Status of a step: numbers that ranks sum in one all-reduce per step."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from megatape.zero.passes.pass_result import GradientSums, Scalar


class BatchCounts(NamedTuple):
    """Counts of the next step's batch. Every rank of a sample counts its targets, but only the first one adds to the digest.

    Attributes:
        num_unreadable: Ranks that cannot read their samples.
        num_targets: Targets that count in the loss.
        digest: Digest of the samples (order.samples_digest).
    """

    num_unreadable: Scalar = 0.0
    num_targets: Scalar = 0.0
    digest: Scalar = 0.0


class Requests(NamedTuple):
    """Requests to the training loop.

    Attributes:
        num_stops: Ranks asked to stop.
        num_saves_ended: Ranks that have written their share of the save in flight.
    """

    num_stops: Scalar = 0.0
    num_saves_ended: Scalar = 0.0


@dataclass(frozen=True)
class StepStatus:
    """Status of a step on one rank, or its sum over all ranks.

    Attributes:
        gradients: Sums over the gradients of the step.
        next_batch: Counts of the next step's batch.
        requests: Requests to the training loop.
    """

    gradients: GradientSums
    next_batch: BatchCounts
    requests: Requests

    def summed(self, sum_over_ranks: Callable[..., list[float]]) -> "StepStatus":
        """Return the sum over all ranks, using Engine.sum_over_ranks. Collective."""
        sums = iter(sum_over_ranks(*self.gradients, *self.next_batch, *self.requests))
        return StepStatus(
            GradientSums(*islice(sums, len(self.gradients))),
            BatchCounts(*islice(sums, len(self.next_batch))),
            Requests(*islice(sums, len(self.requests))),
        )
