"""Figures computed from a run's metrics."""

from megatape.lab.study.results.training_metrics import loss_curve


def test_short_loss_curve_has_every_step() -> None:
    assert loss_curve([5.0, 4.0, 3.0]) == {1: 5.0, 2: 4.0, 3: 3.0}


def test_long_loss_curve_has_means_of_steps() -> None:
    losses = [float(step) for step in range(1, 201)]

    curve = loss_curve(losses)

    assert len(curve) == 50
    assert curve[4] == 2.5
    assert curve[200] == 198.5
