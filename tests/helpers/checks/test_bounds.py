"""Bounds hold on any processor, while still catching the faults they name."""

import pytest
import torch

from tests.helpers.checks.bounds import Bound, all_bounds, assert_close, relative_difference


@pytest.mark.parametrize("name", all_bounds())
def test_distance_from_what_was_seen_and_from_the_fault(name: str) -> None:
    bound = all_bounds()[name]
    assert 5 * max(bound.seen) <= bound.limit <= bound.fault_gives / 3


def test_differences_are_relative_to_the_largest_expected_element() -> None:
    ours = torch.tensor([1.0, 4.0])
    theirs = torch.tensor([1.5, -8.0])
    assert relative_difference(ours, theirs) == 1.5
    assert relative_difference(ours, theirs, floor=24.0) == 0.5


@pytest.mark.parametrize("ours", [[1.0, 2.1], [1.0, float("nan")], [1.0]], ids=str)
def test_differing_numbers_fail(ours: list[float]) -> None:
    bound: Bound = all_bounds()["LOGITS"]
    assert_close([1.0, 2.0], [1.0, 2.0], bound)
    with pytest.raises(AssertionError):
        assert_close(ours, [1.0, 2.0], bound)
