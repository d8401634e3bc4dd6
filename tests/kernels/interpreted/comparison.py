"""Comparing a kernel's results with its formula."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Comparison(NamedTuple):
    """Relative differences from the formula in float64, comparing norms.

    Attributes:
        exact: Whether the kernel computes in float32. Otherwise it computes in bfloat16.
        differences: Differences between results and between gradients, by name.
    """

    exact: bool
    differences: dict[str, float]


def relative_norm(ours: Tensor, theirs: Tensor) -> float:
    """Return the norm of the difference between two tensors, relative to the norm of `theirs`."""
    reference = theirs.detach().double()
    difference = ours.detach().double() - reference
    return float(difference.norm() / reference.norm())


def backward(outputs: Sequence[Tensor]) -> None:
    """Compute gradients, summing the sines of all outputs."""
    sums = [output.double().sin().sum() for output in outputs]
    torch.stack(sums).sum().backward()


def in_float64(arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: argument.detach().double().requires_grad_() for name, argument in arguments.items()}


def compare(
    outputs: dict[str, Tensor], expected: dict[str, Tensor], arguments: dict[str, Tensor], exact: dict[str, Tensor]
) -> dict[str, float]:
    """Run both backward passes, and compare outputs and gradients by name.

    Args:
        outputs: Results from the kernels.
        expected: Results from the formula.
        arguments: Arguments for the kernels.
        exact: The same arguments in float64.
    """
    backward(list(outputs.values()))
    backward(list(expected.values()))
    differences = {name: relative_norm(output, expected[name]) for name, output in outputs.items()}
    for name, argument in arguments.items():
        gradient = argument.grad
        expected_gradient = exact[name].grad
        assert gradient is not None, name
        assert expected_gradient is not None, name
        differences[f"d {name}"] = relative_norm(gradient, expected_gradient)
    return differences
