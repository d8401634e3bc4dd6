"""A step's status: one exchange sums all its parts."""

from typing import Any

from megatape.training.steps.status import BatchCounts, Requests, StepStatus
from megatape.zero.passes.pass_result import GradientSums


def test_one_exchange_sums_all_parts() -> None:
    exchanges: list[tuple[Any, ...]] = []

    def sum_over_two_ranks(*numbers: float) -> list[float]:
        exchanges.append(numbers)
        return [2.0 * number for number in numbers]

    local = StepStatus(
        GradientSums(loss=1.0, num_nonfinite=2.0, squared_norm=3.0, num_changed=9.0),
        BatchCounts(num_unreadable=4.0, num_targets=5.0, digest=6.0),
        Requests(num_stops=7.0, num_saves_ended=8.0),
    )
    summed = local.summed(sum_over_two_ranks)
    assert exchanges == [(1.0, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0, 7.0, 8.0)]
    assert summed.gradients == GradientSums(loss=2.0, num_nonfinite=4.0, squared_norm=6.0, num_changed=18.0)
    assert summed.next_batch == BatchCounts(num_unreadable=8.0, num_targets=10.0, digest=12.0)
    assert summed.requests == Requests(num_stops=14.0, num_saves_ended=16.0)
