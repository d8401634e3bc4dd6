"""Figures from the metrics of a run."""

from megatape.lab.study.results.training_metrics import loss_curve


def test_loss_curve() -> None:
    assert loss_curve([5.0, 4.0, 3.0]) == {1: 5.0, 2: 4.0, 3: 3.0}
    curve = loss_curve([float(step) for step in range(1, 201)])
    assert len(curve) == 50
    assert curve[4] == 2.5
    assert curve[200] == 198.5
