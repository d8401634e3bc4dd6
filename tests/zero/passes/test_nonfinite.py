"""Detecting gradients that are not finite."""

import pytest
import torch
from torch import nn

from megatape.zero.passes.nonfinite import NonfiniteDetector


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_a_nonfinite_gradient_is_detected_until_reset(fault: float) -> None:
    """A later finite gradient does not hide it."""
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    detector = NonfiniteDetector(weights, torch.device("cpu"))
    sum(weight.sum() for weight in weights).backward()  # type: ignore[union-attr]
    assert not detector.detected
    (weights[1] * fault).sum().backward()
    weights[0].sum().backward()
    assert detector.detected
    detector.reset()
    assert not detector.detected
