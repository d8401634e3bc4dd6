"""Mean losses from sums over ranks."""

import math

from megatape.zero.passes.evaluation_losses import EvaluationLosses


def test_means_weight_targets_equally() -> None:
    losses = EvaluationLosses.from_sums(["a", "b"], [6.0, 2.0], [2, 2], num_counts=1)
    assert losses.groups == {"a": 3.0, "b": 1.0}
    assert losses.mean == 2.0


def test_targets_counted_by_several_ranks_count_once() -> None:
    """Two context-parallel ranks each have a part of the loss of a sample, and count all of its targets."""
    losses = EvaluationLosses.from_sums(["a"], [6.0], [4], num_counts=2)
    assert losses.groups == {"a": 3.0}
    assert losses.mean == 3.0


def test_a_group_without_targets_has_no_loss() -> None:
    losses = EvaluationLosses.from_sums(["a", "b"], [6.0, 0.0], [2, 0], num_counts=1)
    assert losses.groups == {"a": 3.0}
    assert losses.mean == 3.0


def test_the_mean_without_any_targets_is_nan() -> None:
    losses = EvaluationLosses.from_sums(["a"], [0.0], [0], num_counts=1)
    assert losses.groups == {}
    assert math.isnan(losses.mean)
